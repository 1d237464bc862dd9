"""What a scan finds broken is told without Great Expectations, which is not imported for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from data_contracts.quoting import MASK
from tests.support.expectations import E, in_files, run

TABLE = pa.table({"id": [1, 2, 2, None], "real": [0.5, None, 7.5, -1.0], "text": ["a", "bcd", None, "ef"]})
BROKEN = [
    E("column_values_to_be_unique", column="id"),
    E("column_values_to_not_be_null", column="text"),
    E("column_values_to_be_between", column="real", max_value=1),
    E("column_value_lengths_to_be_between", column="text", max_value=1),
    E("column_min_to_be_between", column="real", min_value=0),
    E("table_row_count_to_equal", value=7),
    E("column_to_exist", column="gone"),
]


@pytest.mark.parametrize("direct", [False, True], ids=["batches", "files"])
def test_a_rejection_needs_no_great_expectations(direct: bool) -> None:
    files = {"files": in_files(TABLE, 3)} if direct else {}
    load = lambda: pytest.fail("Great Expectations was imported")  # noqa: E731
    outcome = run(TABLE, *BROKEN, rows=2, load=load, sensitive=["real"], **files)
    assert [(one.rows, one.row_numbers, one.values, one.observed) for one in outcome.failures] == [
        (2, [1, 2], ["2", "2"], ""),
        (1, [2], ["null"], ""),
        (1, [2], [MASK], ""),
        (2, [1, 3], ["bcd", "ef"], ""),
        (0, [], [], ""),
        (0, [], [], "4"),
        (0, [], [], ""),
    ]
    lacking = outcome.failures[-1].sentence
    assert lacking.startswith("expect_column_to_exist on gone: the data has no column gone (it has 3 columns, whose")


def test_what_the_scan_does_not_decide_is_left_to_great_expectations() -> None:
    loaded: list[None] = []
    mean = E("column_mean_to_be_between", column="real", max_value=0)
    outcome = run(TABLE, mean, *BROKEN[:1], load=lambda: loaded.append(None))
    assert loaded == [None]
    assert [one.expectation for one in outcome.failures] == [mean["type"], BROKEN[0]["type"]]
