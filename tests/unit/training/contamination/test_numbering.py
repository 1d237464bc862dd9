"""Columns that number the rows are found, and what is shared without them, beside pandas' duplicated()."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from data_contracts.messages.raw_data import SCORED, TRAINED, Side
from tests.support.sealed_rows import compared, sealed
from training.contamination.exact import Compared, find_shared, numbering_columns, record, shared_without

START, MS, NS = datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC")
# Values of 8 rows of train and 4 of test, and whether they number the rows.
COLUMNS: dict[str, tuple[pa.DataType, list[Any], bool]] = {
    "running number": (pa.int64(), list(range(12)), True),
    "numbers that begin again": (pa.int32(), [*range(8), *range(4)], True),
    "times": (pa.timestamp("ms", "UTC"), [START + timedelta(minutes=i) for i in range(12)], True),
    "days": (pa.date32(), [(START + timedelta(days=i)).date() for i in range(12)], True),
    "names": (pa.string(), [f"row-{i:02d}" for i in range(12)], True),
    "whole floats": (pa.float64(), [*map(float, range(11)), None], True),
    "measurements": (pa.float64(), [i + 0.5 for i in range(12)], False),
    "sentences": (pa.string(), [f"row {i} says" for i in range(12)], False),
    "one repeats late": (pa.int64(), [0, 1, 2, 3, 4, 5, 6, 0, 8, 9, 10, 11], False),
    "two are missing": (pa.int64(), [None, None, *range(10)], False),
    "lists": (pa.list_(pa.int64()), [[i] for i in range(12)], False),
    "all missing": (pa.null(), [None] * 12, False),
}  # fmt: skip


def opened(root: Path, columns: dict[str, pa.Array], cut: int = 8) -> Compared:
    table = pa.table(columns)
    dataset = sealed(root, "one", {"train": table.slice(0, cut), "test": table.slice(cut)})
    uses = {"train": TRAINED, "test": SCORED}
    return compared(
        root, [Side(name=name, dataset=dataset, split=name, use=uses[name], own=True) for name in uses], [*columns]
    )


def test_columns_that_number_the_rows_are_told_from_others(tmp_path: Path) -> None:
    columns = {name: pa.array(values, kind) for name, (kind, values, _) in COLUMNS.items()}
    found = numbering_columns(opened(tmp_path, columns), [*columns], tmp_path)
    assert found == [name for name, (_, _, numbers) in COLUMNS.items() if numbers]


@pytest.mark.parametrize("columns", [["id", "x"], ["id", "at", "x"], ["x"], ["id"]], ids=str)
def test_what_is_shared_without_them_is_what_pandas_finds(tmp_path: Path, columns: list[str]) -> None:
    frame = pd.DataFrame({"id": range(12), "x": [0.5, 1.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 1.5, 3.5, 9.5, 8.5]})
    frame["at"] = pd.date_range("2026-01-01", periods=12)
    both = opened(tmp_path, {name: pa.array(frame[name]) for name in columns})
    shared = find_shared(both, record(both, columns, [], tmp_path), tmp_path)
    (tmp_path / "without").mkdir()
    without = shared_without(both, columns, [], shared, tmp_path / "without")
    if columns in (["x"], ["id"]):  # nothing numbers the rows, or nothing is left
        assert without is None
        return
    numbering, more = without
    expected = frame["x"][8:].isin(frame["x"][:8]).sum()
    assert numbering == [name for name in columns if name != "x"]
    assert [(one.later_rows, one.conflicting) for one in more.overlaps(both.sides)] == [(expected, 0)]


def test_copies_that_kept_their_number_say_nothing_more(tmp_path: Path) -> None:
    ids, x = [*range(8), 3, 4, 50, 51], [*(i + 0.5 for i in range(8)), 3.5, 4.5, 50.5, 51.5]
    both = opened(tmp_path, {"id": pa.array(ids), "x": pa.array(x)})
    shared = find_shared(both, record(both, ["id", "x"], [], tmp_path), tmp_path)
    assert shared.overlaps(both.sides)[0].later_rows == 2
    assert shared_without(both, ["id", "x"], [], shared, tmp_path) is None


NFC, NFD = unicodedata.normalize("NFC", "Zürich"), unicodedata.normalize("NFD", "Zürich")
# Two values of a column, and whether their rows are the same.
EQUAL: dict[str, tuple[pa.Array, pa.Array, bool]] = {
    "a negative zero": (pa.array([0.0]), pa.array([-0.0]), True),
    "NaN and a missing number": (pa.array([math.nan]), pa.array([None], pa.float64()), True),
    "NaN of another width": (pa.array([math.nan], pa.float32()), pa.array([None], pa.float64()), True),
    "1 and 1.0": (pa.array([1]), pa.array([1.0]), True),
    "1.10 and 1.1": (pa.array([Decimal("1.10")]), pa.array([Decimal("1.1")]), True),
    "widths of whole numbers": (pa.array([7], pa.int8()), pa.array([7], pa.uint32()), True),
    "units of times": (
        pa.array([START], pa.timestamp("ms", "UTC")),
        pa.array([START], pa.timestamp("ns", "UTC")),
        True,
    ),
    "rounding noise": (pa.array([0.3]), pa.array([0.1 + 0.2]), False),
    "a float32 and a float64": (pa.array([0.1], pa.float32()), pa.array([0.1]), False),
    "a letter and its parts": (pa.array([NFC]), pa.array([NFD]), False),
    "a blank at the end": (pa.array(["a"]), pa.array(["a "]), False),
    "case": (pa.array(["a"]), pa.array(["A"]), False),
    "an empty text and none": (pa.array([""]), pa.array([None], pa.string()), False),
}


@pytest.mark.parametrize(("one", "other", "equal"), EQUAL.values(), ids=EQUAL)
def test_what_equality_means(one: pa.Array, other: pa.Array, equal: bool, tmp_path: Path) -> None:
    sides = [
        Side(name=name, dataset=sealed(tmp_path, name, {name: pa.table({"x": values})}), split=name, use=use, own=True)
        for name, values, use in (("train", one, TRAINED), ("test", other, SCORED))
    ]
    both = compared(tmp_path, sides, ["x"])
    shared = find_shared(both, record(both, ["x"], [], tmp_path), tmp_path)
    assert bool(shared.overlaps(both.sides)) == equal
