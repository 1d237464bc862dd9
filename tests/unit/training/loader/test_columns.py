"""What each type of column becomes in a batch, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import LoaderSpec
from tests.support.splits import write_split
from training.loader import MemoryBudget, Shards, Split

pytestmark = pytest.mark.usefixtures("home")

TABLE = pa.table(
    {
        "id": [0, 1, 2, 3],
        "a": [0.0, 1.0, 2.0, 3.0],
        "b": pa.array([4, 5, 6, 7], pa.int16()),
        "text": ["a", None, "ü", "long"],
        "raw": pa.array([b"1", b"", b"\x00", None], pa.binary()),
        "ragged": pa.array([[1, 2], [], [3], [4, 5, 6]], pa.list_(pa.int64())),
        "gappy": pa.array([[1.5], None, [], [2.5]], pa.list_(pa.float32())),
        "image": pa.array([[[at, 2], [3, 4]] for at in range(4)], pa.list_(pa.list_(pa.uint8()))),
        "flag": [True, False, True, False],
        "small": pa.array([1, 2, 3, 4], pa.uint16()),
        "half": pa.array(np.array([1, 2, 3, 4], np.float16)),
        "gap": [1.5, None, 2.5, 3.5],
        "when": pa.array([0, 1, 2, 3], pa.timestamp("ms")),
        "day": pa.array([0, 1, 2, 3], pa.date32()),
    }
)
ROOMS = {"memory": MemoryBudget(2**30, 0), "cache": MemoryBudget(0, 2**30), "shards": MemoryBudget(2**13, 0)}
# In order and beyond memory, in shards of two rows: what is gathered comes from several places.
rooms = pytest.mark.parametrize("room", ROOMS)


def split(folder: Path, room: str = "memory", batch: Any = None, table: pa.Table = TABLE, **loader: Any) -> Split:
    dataset = write_split(folder / "data", table, [2, 0, table.num_rows - 2])
    place = MemoryBudget(ROOMS[room].memory_bytes, ROOMS[room].cache_bytes)
    if room == "shards":
        place.memory_bytes = round(split(folder, "memory", batch, table, **loader).row_bytes * 2) + 1
    return Split(Shards(folder / "data", dataset, "train"), batch, None, LoaderSpec(**loader), place, in_order=True)


@rooms
def test_each_pinned_batch_is_a_view_of_the_tensor_whose_copies_torch_follows(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pinned = torch.empty, []

    def empty(*arguments: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        """A processor without a GPU pins nothing."""
        tensor = real(*arguments, **more)
        if pin_memory:
            pinned.append(tensor)
        return tensor

    made, rows = split(tmp_path, room, ["id", "image", "small", "flag"]), np.array([2, 3, 2, 3])
    plain = made.batches(rows, 1)
    monkeypatch.setattr(torch, "empty", empty)
    batches = made.batches(rows, 1, pin=True)
    assert len(pinned) == 4
    for batch, expected in zip(batches, plain, strict=True):
        assert all(map(torch.equal, batch, expected))
        assert all(column._base is whole for column, whole in zip(batch, pinned, strict=True))


@rooms
def test_every_type_of_column_has_a_form(room: str, tmp_path: Path) -> None:
    batch = split(tmp_path, room).take(np.array([2, 0]))
    assert list(batch) == TABLE.column_names
    assert batch["text"] == ["ü", "a"]
    assert batch["raw"] == [b"\x00", b"1"]
    assert [part.tolist() for part in batch["ragged"]] == [[3], [1, 2]]
    assert batch["image"].tolist() == [[[2, 2], [3, 4]], [[0, 2], [3, 4]]]
    kinds = {name: str(batch[name].dtype) for name in ("image", "flag", "small", "half", "gap", "when", "day", "a")}
    assert kinds == {
        "image": "torch.uint8",
        "flag": "torch.bool",
        "small": "torch.uint16",
        "half": "torch.float16",
        "gap": "torch.float32",
        "when": "torch.int64",
        "day": "torch.int32",
        "a": "torch.float32",
    }
    assert batch["when"].tolist() == [2, 0]
    assert batch["flag"].tolist() == [True, True]


@rooms
def test_what_is_missing_is_said_where_it_can_be(room: str, tmp_path: Path) -> None:
    batch = split(tmp_path, room).take(np.array([1, 3, 0]))
    assert torch.isnan(batch["gap"][0])
    assert batch["text"] == [None, "long", "a"]
    assert batch["raw"] == [b"", None, b"1"]
    assert [None if part is None else part.tolist() for part in batch["gappy"]] == [None, [2.5], [1.5]]


@rooms
def test_a_decimal_that_is_missing_is_nan_as_a_float_is(room: str, tmp_path: Path) -> None:
    table = pa.table({"id": range(3), "price": pa.array([Decimal("1.50"), None, Decimal(2)], pa.decimal128(12, 2))})
    prices = split(tmp_path, room, ["price"], table).take(np.arange(3))[0]
    assert prices.dtype == torch.float32
    assert prices[[0, 2]].tolist() == [1.5, 2.0]
    assert torch.isnan(prices[1])


@rooms
def test_a_padded_column_is_one_tensor_and_its_lengths_another(room: str, tmp_path: Path) -> None:
    made = split(tmp_path, room, {"x": "ragged", "n": "ragged_length"}, pad={"ragged": -1})
    first, second = made.batches(np.array([1, 0, 3, 2]), 2)
    assert first["x"].tolist() == [[-1, -1], [1, 2]]
    assert first["n"].tolist() == [0, 2]
    assert second["x"].tolist() == [[4, 5, 6], [3, -1, -1]]
    assert second["n"].tolist() == [3, 1]
    assert [first[key].dtype for key in ("x", "n")] == [torch.int64, torch.int64]


def test_without_batch_the_lengths_stand_beside_the_column(tmp_path: Path) -> None:
    table = TABLE.select(["id", "ragged", "a"])
    batch = split(tmp_path, table=table, pad={"ragged": 0}).take(slice(0, 4))
    assert list(batch) == ["id", "ragged", "ragged_length", "a"]
    assert batch["ragged"].shape == (4, 3)


@rooms
def test_a_batch_has_the_form_that_the_spec_says(room: str, tmp_path: Path) -> None:
    as_tuple = split(tmp_path, room, ["image", "id"]).take(np.array([3, 0]))
    assert isinstance(as_tuple, tuple)
    assert [(part.dtype, tuple(part.shape)) for part in as_tuple] == [(torch.uint8, (2, 2, 2)), (torch.int64, (2,))]
    stacked = split(tmp_path, room, {"inputs": ["b", "a"], "id": "id"}).take(np.array([3, 0]))
    assert stacked["inputs"].tolist() == [[7.0, 3.0], [4.0, 0.0]]
    assert stacked["inputs"].dtype == torch.float32
    assert stacked["id"].tolist() == [3, 0]


@rooms
@pytest.mark.parametrize("name", ["a", "b", "id", "flag"])
@pytest.mark.parametrize("rows", [[1], [3, 0]])
def test_one_column_in_a_list_is_a_tensor_of_one_column(room: str, name: str, rows: list[int], tmp_path: Path) -> None:
    made = split(tmp_path, room, [[name], "id"])
    x, ids = made.take(np.array(rows, np.int64))
    assert (x.dtype, tuple(x.shape), ids.tolist()) == (torch.float32, (len(rows), 1), rows)
    assert x[:, 0].tolist() == [float(TABLE.column(name)[row].as_py()) for row in rows]
    assert made.without_numbers(np.arange(4)) == {}


REFUSED: list[Any] = [
    # train.batch, pad, sentence, the rows unless they are those of TABLE
    (["z"], {}, "The dataset has no column 'z'; it has id, a, b,"),
    (
        [["a", "image"]],
        {},
        "train.batch: column 'image' is not one number per row, so it cannot be stacked with others.",
    ),
    (["b_length"], {}, "The dataset has no column 'b_length'"),
    (None, {"text": 0}, "train.loader.pad: column 'text' is not a list of numbers, so there is nothing to pad."),
    (None, {"z": 0}, "The dataset has no column 'z'"),
    (["gappy"], {"gappy": 0}, "Column 'gappy' has no value in 1 of 2 rows, which a tensor cannot express."),
    (None, {}, "train.batch: column 'words' is list<", {"words": [["a"], ["b", "c"], []]}),
    (
        None,
        {"x": 0},
        "train.loader.pad: x_length would be the lengths of 'x', but it is a column of its own",
        {"x": [[1], [2, 3], []], "x_length": [1, 2, 0]},
    ),
]


@pytest.mark.parametrize(("batch", "pad", "sentence", "rows"), [(*case, None)[:4] for case in REFUSED])
def test_what_cannot_be_a_batch_is_a_usage_error(
    batch: Any, pad: dict[str, Any], sentence: str, rows: dict[str, Any] | None, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        split(tmp_path, batch=batch, pad=pad, table=TABLE if rows is None else pa.table(rows))
    assert caught.value.message.startswith(sentence)


MISSING = [
    ("count", pa.array([1, None, 3], pa.int64())),
    ("image", pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8()))),
    ("ragged", pa.array([[1, None], [2], []], pa.list_(pa.int64()))),
]


@pytest.mark.parametrize(("name", "values"), MISSING)
@pytest.mark.parametrize("room", ["memory", "cache"])
def test_a_whole_number_that_is_missing_is_refused(room: str, name: str, values: pa.Array, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"Column '{name}' has no value in 1 of "):
        split(tmp_path, room, table=pa.table({name: values}))


@pytest.mark.parametrize("room", ["memory", "cache", "shards"])
def test_rows_without_a_number_are_counted_by_column(room: str, tmp_path: Path) -> None:
    infinity = float("inf")
    table = pa.table({"a": [1.5, None, -infinity, 4], "b": [1, 2, 3, infinity], "c": [1.0, 2, 3, 4], "n": [1, 2, 3, 4]})
    rows = split(tmp_path, room, {"x": ["a", "b", "c"], "a": "a", "n": "n"}, table)
    assert rows.without_numbers(np.arange(4)) == {"a": 2, "b": 1}
    assert rows.without_numbers(np.array([0, 1])) == {"a": 1}
    assert rows.without_numbers(np.array([0])) == {}


def test_what_a_transform_may_fill_is_not_counted(tmp_path: Path) -> None:
    dataset = write_split(tmp_path, pa.table({"a": [1.5, None]}))
    assert Split(Shards(tmp_path, dataset, "train"), ["a"]).without_numbers(np.arange(2)) == {"a": 1}
    assert Split(Shards(tmp_path, dataset, "train"), ["a"], lambda batch: batch).without_numbers(np.arange(2)) == {}
