"""Which rows are set aside, what is judged on the others, and when the data is rejected as ever."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.contract.engine import broken_rows, check, check_and_set_aside
from data_contracts.contract.findings import Judged
from tests.support.expectations import RESOURCES, TABLE, E, reader, suite

NAN = float("nan")
ROWS = pa.table(
    {
        "id": [0, 1, 2, 3, 4, 5, 6, 7, 8, 8],
        "x": [1.0, 2.0, NAN, 900.0, None, 3.0, 2.0, 1.0, 2.0, 1.0],
        "up": [1, 5, 2, 3, 6, 7, 8, 9, 10, 11],
        "text": ["1", "2", "word", "4", "5", "6", "7", "8", "9", "10"],
    }
)
UNIQUE = E("column_values_to_be_unique", column="id")
THERE = E("column_values_to_not_be_null", column="x")
SMALL = E("column_values_to_be_between", column="x", max_value=100)
MEAN = E("column_mean_to_be_between", column="x", max_value=10)


def judged(
    *expectations: dict[str, Any], table: pa.Table = ROWS, share: float = 0.5, rows: int = 3, **more: Any
) -> Judged:
    settings = {"fail_on": "critical", "sensitive": [], **more}
    judge = partial(check, **settings, resources=RESOURCES)
    read = reader(table, rows)
    return check_and_set_aside(suite(*expectations), read, judge, max_share=share, load=lambda: None, **settings)


def refused(found: Judged) -> str:
    assert not found.outcome.accepted
    assert not len(found.rows)
    return "" if found.quarantine is None else found.quarantine.refused


@pytest.mark.parametrize(
    ("expectations", "aside"),
    [
        ([UNIQUE], [8, 9]),  # every copy
        ([THERE], [2, 4]),  # NaN is missing
        ([SMALL], [3]),  # a missing value does not break a bound
        ([SMALL, MEAN], [3]),  # the mean is judged on the rest
        ([THERE, UNIQUE], [2, 4, 8, 9]),
        ([E("column_values_to_not_be_null", column="x", mostly=0.8)], []),
        ([E("column_values_to_not_be_null", column="x", mostly=0.9)], [2, 4]),  # all of them, not the tenth above
        ([E("column_values_to_not_be_null", "warning", column="x")], []),
        ([E("column_values_to_be_between", column="x", max_value=1, row_condition="id < 2",
            condition_parser="pandas")], [1]),
        ([E("compound_columns_to_be_unique", column_list=["id", "id"])], [8, 9]),
        ([E("column_values_to_be_in_set", column="id", value_set=[3])], [0, 1, 2, 4, 5, 6, 7, 8, 9]),  # one is enough
        # 2 of 10, and 2 of 8 without the duplicates: `mostly` is judged on all rows.
        ([E("column_values_to_not_be_null", column="x", mostly=0.8), UNIQUE], [8, 9]),
    ],
    ids=lambda value: None if value and isinstance(value[0], int) else str(len(value)),
)  # fmt: skip
def test_an_expectation_that_fails_sets_aside_all_its_rows_and_one_that_holds_none(
    expectations: list[dict[str, Any]], aside: list[int]
) -> None:
    found = judged(*expectations, share=0.9)
    assert found.outcome.accepted
    assert found.rows.tolist() == aside
    assert found.outcome.rows == 10
    if not aside:
        assert found.quarantine is None
        return
    assert found.quarantine.rows == len(aside)
    assert sorted(row for _, rows in found.broken for row in rows.tolist()) == aside
    assert [one.expectation for one in found.quarantine.broken] == [name.split(" on ")[0] for name, _ in found.broken]


def test_rows_beyond_the_first_twenty_are_found_as_well() -> None:
    table = pa.table({"x": [*range(1000), *range(30)], "y": ["a"] * 1030})
    found = judged(E("column_values_to_be_unique", column="x"), table=table, rows=64)
    assert found.rows.tolist() == [*range(30), *range(1000, 1030)]
    found = judged(E("column_values_to_be_between", column="x", min_value=30), table=table, rows=64)
    assert found.rows.tolist() == [*range(30), *range(1000, 1030)]


def test_an_aggregate_that_fails_on_the_rest_rejects_and_says_on_which_rows() -> None:
    found = judged(SMALL, E("column_max_to_be_between", column="x", min_value=500))
    assert refused(found) == "This is about the 9 rows that are left without 1 that broke other expectations."
    assert [one.expectation for one in found.outcome.failures] == ["expect_column_max_to_be_between"]
    assert [one.expectation for one in found.quarantine.broken] == ["expect_column_values_to_be_between"]


@pytest.mark.parametrize(("share", "aside"), [(0.1, 0), (0.19, 0), (0.2, 2), (1.0, 2)])
def test_the_share_is_compared_exactly(share: float, aside: int) -> None:
    assert len(judged(THERE, share=share).rows) == aside
    wide = pa.table({"x": [None] * 29 + [1] * 71})  # 0.29 * 100 is 28.999999999999996
    assert len(judged(THERE, table=wide, share=0.29).rows) == 29


BAD = E("column_values_to_be_in_set", column="id", value_set=[100])
NO_ROW = "Without the rows that break expectations, no row is left."
ABOVE = "rows ({}) break {}, more than max_share {} allows."
REFUSED: list[tuple[list[dict[str, Any]], float, str]] = [
    ([MEAN], 0.5, ""),
    ([E("column_values_to_be_unique", column="none")], 0.5, ""),
    ([UNIQUE, THERE], 0.3, f"Quarantine: 4 of 10 {ABOVE.format('40.000%', 'expectations', 0.3)}"),
    ([UNIQUE], 0.1,
     f"Quarantine: 2 of 10 {ABOVE.format('20.000%', 'expect_column_values_to_be_unique on id', 0.1)}"),
    ([BAD], 1.0, NO_ROW),
    # Without them, the column would still be text.
    ([E("column_values_to_be_between", column="text", min_value=0)], 0.5, ""),
]  # fmt: skip


@pytest.mark.parametrize(("expectations", "share", "sentence"), REFUSED)
def test_the_data_is_rejected_as_ever_or_with_why_no_row_is_set_aside(
    expectations: list[dict[str, Any]], share: float, sentence: str
) -> None:
    found = judged(*expectations, share=share)
    assert refused(found) == sentence
    assert len(found.outcome.failures) == len(expectations)


def test_the_only_row_is_not_set_aside() -> None:
    assert refused(judged(BAD, share=1.0, table=ROWS.slice(0, 1))) == NO_ROW


def test_a_missing_column_rejects_whatever_is_set_aside() -> None:
    found = judged(SMALL, E("column_values_to_be_unique", column="none"))
    assert refused(found)
    assert [one.column for one in found.outcome.failures] == ["none"]


def test_an_order_that_leaving_rows_out_does_not_mend_rejects_with_the_numbers_of_all_rows() -> None:
    found = judged(E("column_values_to_be_increasing", column="up"))
    assert refused(found)
    (failure,) = found.outcome.failures
    assert failure.row_numbers == [3]  # 5, 3 once the 2 between them is gone
    assert "are compared anew" in failure.sentence


def test_milder_failures_are_kept_and_graver_ones_follow_fail_on() -> None:
    mild = E("column_values_to_not_be_null", "warning", column="x")
    found = judged(UNIQUE, mild)
    assert [one.severity for one in found.outcome.failures] == ["warning"]
    assert found.rows.tolist() == [8, 9]
    assert judged(UNIQUE, mild, fail_on="warning").rows.tolist() == [2, 4, 8, 9]


def test_values_of_sensitive_columns_are_masked_in_what_is_kept() -> None:
    found = judged(SMALL, sensitive=["x"])
    assert "900" not in found.quarantine.model_dump_json()


def test_each_expectation_about_rows_gives_as_many_rows_as_its_finding() -> None:
    asked = [
        E("column_values_to_be_between", column="gaps", min_value=3),
        E("column_values_to_match_regex", column="text", regex="^a"),
        E("column_value_lengths_to_equal", column="text", value=2),
        E("column_pair_values_to_be_equal", column_A="whole", column_B="pair"),
        E("multicolumn_sum_to_equal", column_list=["whole", "pair"], sum_total=8),
        E("select_column_values_to_be_unique_within_record", column_list=["whole", "pair", "gaps"]),
        E("column_values_to_be_decreasing", column="whole"),
        E("column_value_z_scores_to_be_less_than", column="whole", threshold=2, double_sided=True),
    ]
    whole = check(suite(*asked), reader(TABLE, 3), fail_on="info", sensitive=[], resources=RESOURCES)
    entries = dict(enumerate(suite(*asked)["expectations"]))
    found = broken_rows(entries, reader(TABLE, 3), TABLE.num_rows, TABLE.schema, [])
    assert {index: rows.tolist() for index, rows in found.items()} == {
        index: one.row_numbers for index, one in zip(whole.indices, whole.failures, strict=True)
    }
    assert len(found) == len(asked)
