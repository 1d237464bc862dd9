"""Somebody exchanges a file of a store while it is used, at every moment: what is used is what was sealed, or nothing.

A hook sees each `open` of a file of the store and each read of one before it happens. For every file and every such
moment, the file is exchanged there once, by another file under its name or by bytes in its place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Dataset, Ref, ShardFile
from infra import code_bundle
from infra.store import Store, open_store, seal
from infra.store.store import CHUNK_BYTES, sha256_as_sealed
from tests.support.files import write_files
from training import formats
from training.checkpoint import load_module_weights, saver
from training.checkpoint.saver import CheckpointTarget, save
from training.formats import Shards
from training.formats.schema import to_json

Use = Callable[[Store, Ref, Path], Any]
_armed: Callable[[str], None] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _armed is not None and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _armed(os.path.realpath(os.fsdecode(arguments[0])))


sys.addaudithook(_hook)


class Exchanger:
    """Exchanges a file at the `at`-th moment at which it is opened or read."""

    def __init__(self, path: Path, other: bytes, at: int, in_place: bool, patch: pytest.MonkeyPatch) -> None:
        self.path, self.other, self.left, self.in_place = path, other, at, in_place
        real = os.preadv

        def preadv(file: int, buffers: list[Any], at: int) -> int:
            self.moment(os.path.realpath(f"/proc/self/fd/{file}"))
            return real(file, buffers, at)

        patch.setattr(os, "preadv", preadv)

    def moment(self, path: str) -> None:
        if path.removesuffix(" (deleted)") != str(self.path):
            return
        self.left -= 1
        if self.left == -1:
            self.exchange(self.other)

    def exchange(self, data: bytes) -> None:
        global _armed
        armed, _armed = _armed, None
        if self.in_place:
            self.path.chmod(0o644)
            descriptor = os.open(self.path, os.O_WRONLY)
            os.pwrite(descriptor, data, 0)
            os.close(descriptor)
        else:
            beside = self.path.with_name("beside")
            beside.write_bytes(data)
            beside.rename(self.path)
        _armed = armed


def sealed(store: Store, uri: str, kind: str, files: dict[str, bytes]) -> Ref:
    writer = store.writer(uri)
    return writer.seal(kind, {}, {"parents": []}, [writer.put(name, data) for name, data in files.items()])


class Net(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        # Of several chunks, with a small tensor at the end of the last.
        self.large = nn.Parameter(torch.full((CHUNK_BYTES // 2,), float(value)))
        self.small = nn.Parameter(torch.full((3,), float(value)))


def checkpoint(store: Store, value: int, scratch: Path) -> Ref:
    place = CheckpointTarget(store, "trainings/t-0/checkpoints/1-g0", {"step": 1}, {}, {}, scratch)
    taken = saver.capture({"state_dict": Net(value).state_dict(), "epoch": value}, {}, 0)
    return save(place, taken, 1, [])


def weights_of(store: Store, ref: Ref, _: Path) -> Any:
    net = Net(0.0)
    load_module_weights(net, store.local(ref))
    return {name: tensor.unique().tolist() for name, tensor in net.named_parameters()}


def imported(store: Store, value: int, scratch: Path) -> Ref:
    made = checkpoint(open_store(str(scratch / f"other-{value}")), value, scratch)
    weights = (scratch / f"other-{value}" / made.uri / "weights-0.safetensors").read_bytes()
    return sealed(store, "imports/x", "import", {"model.safetensors": weights})


ROWS = 40_000


def dataset_of(encoding: str) -> Callable[[Store, int, Path], Ref]:
    def dataset(store: Store, value: int, scratch: Path) -> Ref:
        column = pa.array(np.full(ROWS, value, np.int32))
        rows = pa.table({"a": column, "b": column} if value == 1 else {"b": column, "a": column})
        shard = scratch / "shard"
        formats.write_shard(encoding, rows, shard)
        schema = json.dumps(to_json(rows.schema)).encode()
        name = f"train-0{formats.get(encoding).SUFFIX}"
        return sealed(store, "datasets/d-0", "dataset", {name: shard.read_bytes(), "schema.json": schema})

    return dataset


def rows_of(encoding: str) -> Use:
    def rows(store: Store, ref: Ref, _: Path) -> Any:
        [entry] = [one for one in store.manifest(ref).files if one.path != "schema.json"]
        shard = ShardFile(uri=ref.uri, path=entry.path, rows=ROWS, bytes=entry.bytes, blake3=entry.blake3)
        columns = {"a": "int32", "b": "int32"}
        dataset = Dataset(ref=ref, key="d", format=encoding, splits={"train": [shard]}, columns=columns)
        shards = Shards(store.local(ref), dataset, "train")
        tables = [table for start in (0, ROWS // 2) for table in shards.tables(0, ["a"], start)]
        return shards.schema.names, {value for table in tables for value in table.column(0).unique().to_pylist()}

    return rows


def code(store: Store, value: int, scratch: Path) -> Ref:
    return code_bundle.pack(write_files(scratch / f"project-{value}", {"net.py": f"x = {value}\n"}), store).ref


def code_of(store: Store, ref: Ref, scratch: Path) -> Any:
    return (code_bundle.unpack(store, ref, scratch / "unpacked") / "net.py").read_text()


def sha256_of(store: Store, ref: Ref, _: Path) -> Any:
    manifest = store.manifest(ref)
    return [sha256_as_sealed(store, manifest, entry) for entry in manifest.files]


CASES: dict[str, tuple[Callable[[Store, int, Path], Ref], Use]] = {
    "checkpoint": (checkpoint, weights_of),
    "parquet": (dataset_of("parquet"), rows_of("parquet")),
    "tfrecord": (dataset_of("tfrecord"), rows_of("tfrecord")),
    "code": (code, code_of),
    "signed digests": (imported, sha256_of),
}


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "renamed"])
@pytest.mark.parametrize("case", CASES)
def test_no_byte_is_used_that_was_not_hashed(case: str, in_place: bool, tmp_path: Path) -> None:
    global _armed
    make, use = CASES[case]
    places = [tmp_path / "own", tmp_path / "others"]
    for place in places:
        place.mkdir()
    store, others = (open_store(str(place / "store")) for place in places)
    ref, other = make(store, 1, places[0]), make(others, 2, places[1])
    expected = use(store, ref, tmp_path / "first")
    tried = 0
    for path in sorted((Path(store.uri) / ref.uri).rglob("*")):
        replacement = Path(others.uri) / other.uri / path.relative_to(Path(store.uri) / ref.uri)
        if not path.is_file() or not replacement.exists():
            continue
        own, data = path.read_bytes(), replacement.read_bytes()
        for moment in range(100):
            seal._roots.clear()
            with pytest.MonkeyPatch.context() as patch:
                exchanger = Exchanger(path, data, moment, in_place, patch)
                _armed = exchanger.moment
                try:
                    assert use(store, ref, tmp_path / f"{path.name}-{moment}") == expected, (path.name, moment)
                except CorruptError:
                    pass
                finally:
                    _armed = None
            if exchanger.left >= 0:  # it is not looked at so often
                break
            exchanger.exchange(own)
            os.truncate(path, len(own))
            tried += 1
    assert tried >= 2, "some file was exchanged at several moments"


SIGN = """
import subprocess
import sys
from data_contracts.errors import CorruptError
from infra.store import open_store
from infra.store.store import sha256_as_sealed
store = open_store(sys.argv[1])
for uri in sys.argv[2:]:
    manifest = store.manifest(uri)
    try:
        sha256_as_sealed(store, manifest, manifest.files[0])
    except CorruptError as error:
        print(error.details["file"])
"""


def test_what_is_signed_is_neither_waited_for_nor_endless(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    refs = [sealed(store, f"imports/{name}", "import", {"model.safetensors": b"x"}) for name in ("pipe", "device")]
    places = [Path(store.uri, ref.uri, "model.safetensors") for ref in refs]
    for path in places:
        path.unlink()
    os.mkfifo(places[0])
    places[1].symlink_to("/dev/zero")
    command = [sys.executable, "-c", SIGN, store.uri, *(ref.uri for ref in refs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "".join(f"{ref.uri}/model.safetensors\n" for ref in refs)
