"""A batch that an exported graph makes of a dataset's columns is the batch that the loader makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.support.splits import write_split
from training.export.portable import RUN, SAMPLE, NotTensors, columns_in, flattened, read_columns, sampled
from training.loader import Shards, Split

pytestmark = pytest.mark.usefixtures("home")

TABLE = pa.table(
    {
        "a": [0.1, 1e300, None, float("inf")],
        "b": pa.array([4, -5, 6, 2**15 - 1], pa.int16()),
        "large": pa.array([2**53 + 1, -(2**62), 0, 1], pa.int64()),
        "image": pa.array([[[at, 2], [3, 4]] for at in range(4)], pa.list_(pa.list_(pa.uint8()))),
        "flag": [True, False, True, False],
        "half": pa.array(np.array([1, 2, 3, 4], np.float16)),
        "when": pa.array([0, 1, 2, 3], pa.timestamp("ms")),
        "day": pa.array([0, 1, 2, 3], pa.date32()),
        "sepal length (cm)": [1.0, 2.0, 3.0, 4.0],
        "text": ["a", "b", "c", "d"],
    }
)
NUMBERS = [name for name in TABLE.column_names if name != "text"]


@pytest.mark.parametrize(
    "batch",
    [
        {name: name for name in NUMBERS},
        [["a", "b", "large", "flag", "half"], "image"],
        [["a"], "a", "b"],
        ["sepal length (cm)"],
        {"x": ["sepal length (cm)", "day", "when"], "y": "flag"},
    ],
    ids=str,
)
def test_a_batch_is_made_as_the_loader_makes_it(batch: Any, tmp_path: Path) -> None:
    shards = Shards(tmp_path / "data", write_split(tmp_path / "data", TABLE, [1, 0, 3]), "train")
    columns = columns_in(shards.schema, {"batch": batch})
    runs = [(0, 1), (2, 4)]
    inputs = read_columns(shards, columns.facts, runs)
    with np.errstate(over="ignore"):
        wanted = Split(shards, batch, in_order=True).take(np.array([0, 2, 3]))
    made = columns.batch(inputs)
    assert type(made) is type(wanted)
    keys = list(wanted) if isinstance(wanted, dict) else range(len(wanted))
    for key in keys:
        assert made[key].dtype == wanted[key].dtype
        assert torch.equal(made[key].nan_to_num(7), wanted[key].nan_to_num(7)), key
    for one in columns.facts:
        assert inputs[one.name].dtype == getattr(torch, one.dtype)
        assert list(inputs[one.name].shape) == [3, *one.shape[1:]]
    assert {one.name: one.column for one in columns.facts}.items() <= {
        "a": "float64",
        "b": "int16",
        "large": "int64",
        "image": "tensor<uint8>[2,2]",
        "flag": "bool",
        "half": "float16",
        "when": "timestamp[ms]",
        "day": "date32",
        "sepal length (cm)": "float64",
    }.items()


@pytest.mark.parametrize("batch", [["a", "text"], {"t": "text"}], ids=str)
def test_texts_are_not_inputs(batch: Any, tmp_path: Path) -> None:
    shards = Shards(tmp_path / "data", write_split(tmp_path / "data", TABLE, [4]), "train")
    assert columns_in(shards.schema, {"batch": batch}) is None


@pytest.mark.parametrize("rows", [1, 2, SAMPLE, SAMPLE + 1, SAMPLE + RUN, 1000, 10**9])
def test_a_sample_has_the_first_and_the_last_row_and_no_row_twice(rows: int) -> None:
    runs = sampled(rows)
    chosen = np.concatenate([np.arange(*run) for run in runs])
    assert chosen[0] == 0
    assert chosen[-1] == rows - 1
    assert len(chosen) == len(set(chosen.tolist())) == min(rows, len(chosen))
    assert min(rows, SAMPLE // 2) <= len(chosen) <= SAMPLE


def test_the_entries_of_a_batch_have_names() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2)
    assert list(flattened((x, y), [["a", "b", "c"], "label"])[0]) == ["input_0", "label"]
    assert list(flattened({"x": x, "more": (y, {"z": y})}, None)[0]) == ["x", "more_input_0", "more_input_1_z"]
    assert list(flattened(x, None)[0]) == ["input"]
    with pytest.raises(NotTensors, match="the entry t of a batch is a str"):
        flattened({"t": "text"}, None)
