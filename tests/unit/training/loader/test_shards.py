"""What happens to shards between sealing and reading is named, with the shard, before a row of it is used."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import LoaderSpec, TrainSpec
from tests.support.splits import write_split
from training import formats
from training.formats import shard_path
from training.loader import MemoryBudget, Sampling, Shards, Split, TrainLoader
from training.order import make_plan

pytestmark = pytest.mark.usefixtures("home")

TABLE = pa.table({"x": pa.array(range(40), pa.int64())})
PLACES = {"memory": MemoryBudget(2**30, 0), "cache": MemoryBudget(0, 2**30), "shards": MemoryBudget(4 * 10 * 8, 0)}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (flip, "does not hold the bytes that were sealed"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"bytes, but \d+ were sealed"),
    "emptied": (lambda path: path.write_bytes(b""), r"has 0 bytes, but \d+ were sealed"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), r"bytes, but \d+ were sealed"),
    "gone": (lambda path: path.unlink(), "is missing"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), r"bytes, but \d+ were sealed|could not be read"),
}


@pytest.mark.parametrize("form", ["parquet", "tfrecord"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_shard_is_named_before_a_row_of_it_is_used(fault: str, place: str, form: str, tmp_path: Path) -> None:
    change, sentence = FAULTS[fault]
    dataset = write_split(tmp_path / "data", TABLE, [10, 10, 10, 10], form)
    hurt = tmp_path / "data" / dataset.splits["train"][2].path
    change(hurt)
    loader = LoaderSpec(shuffle="block", window_blocks=2)
    room = MemoryBudget(PLACES[place].memory_bytes, PLACES[place].cache_bytes)
    plan = make_plan(40, TrainSpec(lightning={}, global_batch_size=2), 1)
    seen: list[int] = []

    def read() -> None:
        split = Split(Shards(tmp_path / "data", dataset, "train"), ["x"], None, loader, room)
        for [x] in TrainLoader(split, plan, Sampling("d", 0, loader), 0):
            seen.extend(x.tolist())

    with pytest.raises(TrainwrightError, match=f"{hurt.name}.*({sentence})") as caught:
        read()
    assert isinstance(caught.value, CorruptError if fault != "a folder" else (CorruptError, StorageUnavailable))
    assert not set(seen) & set(range(20, 30))


def test_a_shard_that_the_dataset_does_not_name_is_refused(tmp_path: Path) -> None:
    dataset = write_split(tmp_path, TABLE)
    (tmp_path / "train-00007.parquet").write_bytes((tmp_path / "train-00000.parquet").read_bytes())
    with pytest.raises(CorruptError, match="Shard train-00007.parquet is extra: the dataset does not name it"):
        Split(Shards(tmp_path, dataset, "train"))


def test_a_shard_with_fewer_rows_than_said_is_refused(tmp_path: Path) -> None:
    dataset = write_split(tmp_path, TABLE)
    told = dataset.to_json()
    told["splits"]["train"][0]["rows"] = 41
    with pytest.raises(CorruptError, match="Shard train-00000.parquet has 40 rows, but the dataset says 41"):
        Split(Shards(tmp_path, Dataset.from_json(told), "train"))


def test_a_disk_that_fails_is_named_with_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_split(tmp_path, TABLE)

    def broken(*_: object) -> object:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(formats.get("parquet"), "read_blocks", broken)
    with pytest.raises(StorageUnavailable, match="Shard train-00000.parquet could not be read .EIO"):
        Split(Shards(tmp_path, dataset, "train"))


def test_a_shard_of_a_parent_lies_in_the_parents_folder(tmp_path: Path) -> None:
    parent = write_split(tmp_path / "datasets" / "p-0", TABLE)
    told = write_split(tmp_path / "datasets" / "d-0", TABLE.slice(0, 5)).to_json()
    inherited = {**parent.to_json()["splits"]["train"][0], "uri": "datasets/p-0"}
    told["splits"]["train"].insert(0, inherited)
    dataset = Dataset.from_json(told)
    folder = tmp_path / "datasets" / "d-0"
    assert shard_path(folder, dataset, dataset.splits["train"][0]).parent.name == "p-0"
    rows = Split(Shards(folder, dataset, "train"), ["x"], loader=LoaderSpec()).take(slice(38, 45))
    assert rows[0].tolist() == [38, 39, 0, 1, 2, 3, 4]
