"""Findings about several columns in a row, without Great Expectations: counts, rows, and values with missing ones."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.expectations import E, in_files, plan, run

TABLE = pa.table(
    {
        "a": pa.array([1, 2, None, 2, None], pa.int64()),
        "b": pa.array([1, 1, 5, 1, None], pa.int32()),
        "x": pa.array([-0.0, None, 1.5, 1.5, 2.0]),
        "y": pa.array([0.0, 1.0, 1.5, 2.5, 1.0]),
        "s": ["p", None, "q", "r", None],
        "t": ["p", None, "p", None, "s"],
    }
)
AB, XY, ST = ({"column_A": one[0], "column_B": one[1]} for one in ("ab", "xy", "st"))
CASES: list[tuple[dict[str, Any], tuple[int, list[int], list[str]] | None]] = [
    (E("column_pair_values_to_be_equal", **AB), (3, [1, 2, 3], ["a=2, b=1", "a=null, b=5", "a=2, b=1"])),
    (E("column_pair_values_to_be_equal", **AB, ignore_row_if="either_value_is_missing", mostly=1 / 3), None),
    (E("column_pair_values_to_be_equal", **ST, ignore_row_if="neither"),
     (4, [1, 2, 3, 4], ["s=null, t=null", "s=q, t=p", "s=r, t=null", "s=null, t=s"])),
    (E("column_pair_values_a_to_be_greater_than_b", **XY, or_equal=True),
     (2, [1, 3], ["x=null, y=1.0", "x=1.5, y=2.5"])),
    (E("compound_columns_to_be_unique", column_list=["a", "b"]), (2, [1, 3], ["a=2, b=1", "a=2, b=1"])),
    (E("compound_columns_to_be_unique", column_list=["a", "b"], mostly=0.5), None),
    (E("select_column_values_to_be_unique_within_record", column_list=["x", "y"]),
     (2, [0, 2], ["x=-0.0, y=0.0", "x=1.5, y=1.5"])),
    (E("multicolumn_sum_to_equal", column_list=["a", "b"], sum_total=3, ignore_row_if="any_value_is_missing"),
     (1, [0], ["a=1, b=1"])),
]  # fmt: skip


@pytest.mark.parametrize("direct", [False, True], ids=["batches", "files"])
def test_a_finding_is_great_expectations_without_it(direct: bool) -> None:
    files = {"files": in_files(TABLE, 2)} if direct else {}
    load = lambda: pytest.fail("Great Expectations was imported")  # noqa: E731
    outcome = run(TABLE, *(one for one, _ in CASES), rows=2, load=load, **files)
    found = dict(zip(outcome.indices, outcome.failures, strict=True))
    for index, (_, wanted) in enumerate(CASES):
        one = found.get(index)
        assert (None if one is None else (one.rows, one.row_numbers, one.values)) == wanted


def test_what_pandas_would_round_or_turn_into_another_type_is_left() -> None:
    schema = TABLE.schema
    for one in (
        E("column_pair_values_to_be_equal", column_A="a", column_B="x"),
        E("column_pair_values_a_to_be_greater_than_b", **ST),
        E("multicolumn_sum_to_equal", column_list=["x", "y", "x"], sum_total=1),
        E("multicolumn_sum_to_equal", column_list=["x", "a"], sum_total=1),
        E("compound_columns_to_be_unique", column_list=["a", "a"]),
        E("compound_columns_to_be_unique", column_list=["a"]),
    ):
        assert isinstance(plan(one, schema), str), one
    large = pa.table({"a": pa.array([2**53, None], pa.int64()), "b": [2**53 + 1, 1]})
    loaded: list[dict[str, type]] = []
    load = lambda: loaded.append({}) or loaded[-1]  # noqa: E731
    run(large, E("column_pair_values_to_be_equal", **AB, ignore_row_if="either_value_is_missing"), load=load)
    run(large, E("select_column_values_to_be_unique_within_record", column_list=["a", "b"]), load=load)
    assert len(loaded) == 2
