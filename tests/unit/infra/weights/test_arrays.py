"""Weights are read without torch as torch would read them, and compared tensor by tensor."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from infra.store import Store, open_store
from infra.weights import compare, weights
from tests.support.damage import overwrite

FIRST = "trainings/e9d60c325e5da602f6f0e655e052167d0c60c7ba-0/checkpoints/45-g0"
SECOND = "trainings/27ec13a7075eac5065f6e9e1cab7d646609bc60e-0/checkpoints/45-g0"

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path, repository: Path) -> Store:
    """A copy of the golden store."""
    return open_store(str(shutil.copytree(repository / "tests/golden/store-v1/store", tmp_path / "store")))


def sealed(store: Store, uri: str, files: dict[str, bytes], tensors: dict[str, list[dict[str, Any]]]) -> Ref:
    """A sealed directory with files of tensors and an index that says which pieces make up each."""
    writer = store.writer(uri)
    index = {
        f"state_dict/{name}": {"dtype": "float32", "pieces": pieces, "shape": [4, 2], "sharded": len(pieces) > 1}
        for name, pieces in tensors.items()
    }
    entries = [writer.put(name, data) for name, data in files.items()]
    entries.append(writer.put("index.json", json.dumps({"schema_version": 1, "tensors": index}).encode()))
    return writer.seal("checkpoint", {}, {}, entries)


def piece(file: str, offset: tuple[int, int] = (0, 0), rows: int = 4) -> dict[str, Any]:
    return {"file": file, "key": "w", "offset": list(offset), "shape": [rows, 2]}


def bfloat16(values: np.ndarray) -> bytes:
    """A file with one tensor of bfloat16, which NumPy does not have."""
    data = (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    header = json.dumps({"w": {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def test_the_tensors_are_those_of_the_safetensors_library(store: Store) -> None:
    theirs = load_file(Path(store.uri) / FIRST / "weights-0.safetensors")
    ours = dict(weights(store, store.manifest(FIRST).ref))
    assert sorted(ours) == sorted(theirs) == ["net.0.bias", "net.0.weight", "net.2.bias", "net.2.weight"]
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_two_checkpoints_side_by_side(store: Store) -> None:
    refs = store.manifest(FIRST).ref, store.manifest(SECOND).ref
    before, after = (load_file(Path(store.uri) / uri / "weights-0.safetensors") for uri in (FIRST, SECOND))
    found = compare((store, store), refs)
    assert [one.relative for one in found] == sorted((one.relative or 0 for one in found), reverse=True)
    for one in found:
        assert one.difference == pytest.approx(np.linalg.norm(after[one.name] - before[one.name]), rel=1e-6)
        assert one.norms == pytest.approx((np.linalg.norm(before[one.name]), np.linalg.norm(after[one.name])), rel=1e-6)
        assert one.largest == pytest.approx(np.abs(after[one.name] - before[one.name]).max())
    assert all(one.same and one.difference == 0 for one in compare((store, store), (refs[0], refs[0])))


def test_pieces_of_several_ranks_and_bfloat16_make_the_same_tensor(store: Store) -> None:
    whole = np.arange(8, dtype=np.float32).reshape(4, 2)
    halves = {
        f"weights-{at}.safetensors": save({"w": np.ascontiguousarray(whole[2 * at : 2 * at + 2])}) for at in (0, 1)
    }
    pieces = [piece("weights-0.safetensors", (0, 0), 2), piece("weights-1.safetensors", (2, 0), 2)]
    sharded = sealed(store, "trainings/a-0/checkpoints/1-g0", halves, {"_orig_mod.w": pieces})
    narrow = {"weights-0.safetensors": bfloat16(whole)}
    short = sealed(store, "trainings/b-0/checkpoints/1-g0", narrow, {"w": [piece("weights-0.safetensors")]})
    [one] = compare((store, store), (sharded, short))
    assert (one.name, one.same, one.shapes) == ("w", True, ((4, 2), (4, 2)))


def test_other_names_are_told_apart(store: Store) -> None:
    made = {"weights-0.safetensors": save({"w": np.ones((4, 2), dtype=np.float32)})}
    first = sealed(store, "trainings/a-0/checkpoints/1-g0", made, {"w": [piece("weights-0.safetensors")]})
    second = sealed(store, "trainings/b-0/checkpoints/1-g0", made, {"v": [piece("weights-0.safetensors")]})
    found = compare((store, store), (first, second))
    assert [(one.name, one.shapes, one.difference, one.same) for one in found] == [
        ("v", (None, (4, 2)), None, False),
        ("w", ((4, 2), None), None, False),
    ]


def overlapping(times: int, dtype: str = "BF16") -> bytes:
    """A file of as many tensors as `times`, all of the same bytes."""
    entry = {"dtype": dtype, "shape": [4, 2], "data_offsets": [0, 16]}
    header = json.dumps({f"w{number or ''}": entry for number in range(times)}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


WHOLE = {"w": [piece("weights-0.safetensors")]}
WRONG: dict[str, tuple[bytes, dict[str, list[dict[str, Any]]], str | None]] = {
    "nothing": (b"", WHOLE, None),
    "noise": (b"\xff" * 40, WHOLE, None),
    "null": (struct.pack("<Q", 4) + b"null", WHOLE, None),
    "no tensor": (struct.pack("<Q", 2) + b"{}", WHOLE, None),
    "another name": (save({"x": np.ones(3)}), WHOLE, None),
    "another shape": (save({"w": np.ones((2, 2))}), WHOLE, None),
    "nested deep": (struct.pack("<Q", 80_000) + b"[" * 80_000, WHOLE, None),
    "tensors of the same bytes": (overlapping(4000), WHOLE, "is not a file of tensors"),
    "a piece many times": (
        save({"w": np.ones((1, 2), np.float32)}),
        {"w": [piece("weights-0.safetensors", (row, 0), 1) for row in range(4)]},
        "does not match the tensors",
    ),
    "a piece of two tensors": (
        save({"w": np.ones((4, 2), np.float32)}),
        {"v": [piece("weights-0.safetensors")], "w": [piece("weights-0.safetensors", (0, 1))]},
        "does not match the tensors",
    ),
    "a tensor larger than its pieces": (
        save({"w": np.ones((2, 2), np.float32)}),  # the index says 4 x 2
        {"w": [piece("weights-0.safetensors", rows=2)]},
        "does not match the tensors in its files",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_is_not_what_the_index_says_is_corrupt(
    case: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.startswith("a tensor larger"):
        monkeypatch.setattr("infra.weights._whole", lambda *_: pytest.fail("it was put together"))
    data, tensors, sentence = WRONG[case]
    ref = sealed(store, "trainings/a-0/checkpoints/1-g0", {"weights-0.safetensors": data}, tensors)
    with pytest.raises(CorruptError, match=sentence):
        dict(weights(store, ref))


def test_tied_weights_are_put_together_once(store: Store) -> None:
    halves = {f"weights-{at}.safetensors": save({"w": np.full((2, 2), at, np.float32)}) for at in (0, 1)}
    pieces = [piece("weights-0.safetensors", (0, 0), 2), piece("weights-1.safetensors", (2, 0), 2)]
    names = [f"w{number}" for number in range(1000)]
    ref = sealed(store, "trainings/a-0/checkpoints/1-g0", halves, dict.fromkeys(names, pieces))
    found = dict(weights(store, ref))
    assert list(found) == sorted(names)
    assert len({id(one) for one in found.values()}) == 1
    assert found["w0"].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]


def test_changed_weights_are_corrupt(store: Store) -> None:
    path = Path(store.uri) / FIRST / "weights-0.safetensors"
    overwrite(path, path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(CorruptError):
        dict(weights(store, store.manifest(FIRST).ref))
