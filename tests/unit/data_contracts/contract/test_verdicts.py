"""What a scan finds broken is told without Great Expectations, which is not imported for it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from data_contracts.quoting import MASK
from tests.support.expectations import E, in_files, plan, run

SINGLE = pa.table({"id": [1, 2, 2, None], "real": [0.5, None, 7.5, -1.0], "text": ["a", "bcd", None, "ef"]})
SEVERAL = pa.table(
    {
        "a": pa.array([1, 2, None, 2, None], pa.int64()),
        "b": pa.array([1, 1, 5, 1, None], pa.int32()),
        "x": pa.array([-0.0, None, 1.5, 1.5, 2.0]),
        "y": pa.array([0.0, 1.0, 1.5, 2.5, 1.0]),
        "s": ["p", None, "q", "r", None],
        "t": ["p", None, "p", None, "s"],
    }
)
NUMBERS = pa.table({"n": [1, 2, 3], "r": [0.5, None, 2.0]})
AB, XY, ST = ({"column_A": one[0], "column_B": one[1]} for one in ("ab", "xy", "st"))
NOT_MET, MET = ({"row_condition": text, "condition_parser": "pandas"} for text in ("r < -1 and r == 0", "r > 0"))
UNIQUE = E("column_values_to_be_unique", column="id")
# table, sensitive columns; each expectation with how many rows break it, which, and their values; None: it holds
FINDINGS: dict[str, tuple[pa.Table, list[str], list[tuple[dict[str, Any], Any]]]] = {
    "single columns": (SINGLE, ["real"], [
        (UNIQUE, (2, [1, 2], ["2", "2"])),
        (E("column_values_to_not_be_null", column="text"), (1, [2], ["null"])),
        (E("column_values_to_be_between", column="real", max_value=1), (1, [2], [MASK])),
        (E("column_value_lengths_to_be_between", column="text", max_value=1), (2, [1, 3], ["bcd", "ef"])),
        (E("column_min_to_be_between", column="real", min_value=0), (0, [], [])),
        (E("table_row_count_to_equal", value=7), (0, [], [])),
        (E("column_to_exist", column="gone"), (0, [], [])),
    ]),
    "several columns in a row": (SEVERAL, [], [
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
    ]),
    "a condition that no row meets beside one that some meet": (NUMBERS, [], [
        (E("column_values_to_be_between", column="n", max_value=0, **NOT_MET), None),
        (E("column_values_to_be_between", column="n", max_value=2, **MET), (1, [2], ["3"])),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", FINDINGS)
@pytest.mark.parametrize("direct", [False, True], ids=["batches", "files"])
def test_a_rejection_needs_no_great_expectations(direct: bool, case: str) -> None:
    table, sensitive, asked = FINDINGS[case]
    files = {"files": in_files(table, 2)} if direct else {}
    load = lambda: pytest.fail("Great Expectations was imported")  # noqa: E731
    outcome = run(table, *(one for one, _ in asked), rows=2, load=load, sensitive=sensitive, **files)
    found = dict(zip(outcome.indices, outcome.failures, strict=True))
    assert {at: (one.rows, one.row_numbers, one.values) for at, one in found.items()} == {
        at: wanted for at, (_, wanted) in enumerate(asked) if wanted is not None
    }


def test_what_the_scan_does_not_decide_is_left_to_great_expectations() -> None:
    loaded: list[None] = []
    mean = E("column_mean_to_be_between", column="real", max_value=0)
    outcome = run(SINGLE, mean, UNIQUE, load=lambda: loaded.append(None))
    assert loaded == [None]
    assert [one.expectation for one in outcome.failures] == [mean["type"], UNIQUE["type"]]


def test_what_pandas_would_round_or_turn_into_another_type_is_left() -> None:
    schema = SEVERAL.schema
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
