"""The engine and times, and what it keeps to itself: nothing printed, nothing read or loaded without need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.contract import engine, frames, great_expectations_engine
from data_contracts.contract.engine import check
from data_contracts.errors import SpecError
from tests.support.expectations import RESOURCES, E, one, reader, run, suite

TIMES = {
    "naive": pa.array(["2024-01-01T10:00:00", "2024-03-01T00:00:00"]).cast(pa.timestamp("us")),
    "far": pa.array(["2024-01-01T10:00:00", "9999-12-31T00:00:00"]).cast(pa.timestamp("us")),
    "zoned": pa.array(["2024-01-01T10:00:00Z", "2024-03-01T00:00:00Z"]).cast(pa.timestamp("us", "UTC")),
    "day": pa.array(["2024-01-01", "2024-03-01"]).cast(pa.date32()),
}


@pytest.mark.parametrize("column", TIMES)
@pytest.mark.parametrize("bound", ["2024-02-01", "2024-02-01T00:00:00Z", "2024-02-01T02:00:00+02:00"])
def test_times_compare_with_iso_texts(column: str, bound: str) -> None:
    table = pa.table(TIMES)
    assert one(table, E("column_values_to_be_between", column=column, max_value=bound)).row_numbers == [1]
    assert one(table, E("column_max_to_be_between", column=column, max_value=bound)).observed
    assert run(table, E("column_min_to_be_between", column=column, max_value=bound)).accepted


def test_times_are_read_as_iso_texts_where_texts_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BLOCK_ROWS", 1)
    days = pa.array(["2024-01-01", "2024-03-01"]).cast(pa.date32())
    moments = pa.array(["2024-01-01T00:00:00", "2024-01-02T10:00:00"]).cast(pa.timestamp("s"))
    assert run(
        pa.table({"day": days, "at": moments}),
        E("column_values_to_match_strftime_format", column="day", strftime_format="%Y-%m-%d"),
        E("column_values_to_match_strftime_format", column="at", strftime_format="%Y-%m-%d %H:%M:%S"),
        E("column_values_to_be_dateutil_parseable", column="at"),
        E("column_values_to_match_regex", column="day", regex=r"^\d{4}-\d\d-\d\d$"),
        E("column_value_lengths_to_equal", column="at", value=19),
    ).accepted


def test_nothing_is_printed_and_nobody_is_warned(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    one, other = (E("column_values_to_be_between", column=column, min_value=0) for column in "ab")
    one["kwargs"]["row_condition"] = "a != 0"
    assert len(run(pa.table({"a": [1, -1], "b": ["x", "y"]}), one, other, resources=None).failures) == 2
    assert (*capfd.readouterr(), list(recwarn)) == ("", "", [])


def test_the_list_of_expectations_is_that_of_the_installed_version() -> None:
    kept = json.loads(Path(engine.__file__).with_name("expectations.json").read_text())
    assert kept == great_expectations_engine.catalogue(), (
        "run `python -m data_contracts.contract.great_expectations_engine > data_contracts/contract/expectations.json`"
    )


def test_a_suite_that_is_translated_is_loaded_and_checked_without_great_expectations() -> None:
    code = (
        "import sys; import pyarrow as pa; from pathlib import Path\n"
        "from data_contracts.contract.engine import check\n"
        "from data_contracts.contract.scan import Resources\n"
        "from data_contracts.contract.suites import load_suite, suite_digest\n"
        "kwargs = {'column': 'a', 'min_value': 0, 'mostly': 0.5}\n"
        "entry = {'type': 'expect_column_values_to_be_between', 'kwargs': kwargs}\n"
        "suite = load_suite({'name': 's', 'expectations': [entry]}, Path())\n"
        "read = lambda columns: pa.table({'a': [1, -1]}).to_batches()\n"
        "resources = Resources(Path('/nonexistent'), 2**26, 1)\n"
        "assert suite_digest(suite) and 'pandas' not in sys.modules\n"
        "assert check(suite, read, fail_on='critical', sensitive=[], resources=resources).accepted\n"
        "sys.exit('great_expectations' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ROWS = pa.table({"a": [1, 5], "b": [1, 1], "c": [1, 1], "big": [b"x", b"y"]})
# table; expectations; whether one scan may decide them; rows that break them; columns that are read, one after another
READS = {
    "only those that are needed": (
        ROWS,
        [
            E("column_values_to_be_between", column="a", max_value=5, row_condition="b > 0", condition_parser="pandas"),
            E("column_mean_to_be_between", column="c"),
            E("table_columns_to_match_set", column_set=["a", "b", "c", "big"]),
        ],
        False, [], [None, ["a", "b"], ["c"]],
    ),
    "all in one scan, then again what is broken": (
        ROWS,
        [
            E("column_values_to_not_be_null", column="b"),
            E("column_values_to_be_between", column="a", max_value=2),
            E("table_row_count_to_equal", value=2),
        ],
        True, [[1]], [None, ["a", "b"], ["a"]],
    ),
    "one to count rows by where none is measured": (
        pa.table({"big": [["x"], ["y"]]}),
        [E("table_row_count_to_equal", value=2), E("column_to_exist", column="big")],
        True, [], [None, ["big"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READS)
def test_which_columns_are_read(case: str) -> None:
    table, asked, is_scanned, broken, columns = READS[case]
    seen: list[list[str] | None] = []
    resources = RESOURCES if is_scanned else None
    found = check(suite(*asked), reader(table, seen=seen), fail_on="critical", sensitive=[], resources=resources)
    assert [failure.row_numbers for failure in found.failures] == broken
    assert found.rows == 2
    assert seen == columns


# expectation; what is said of it after `contract.suite: expectations.0.kwargs`
REFUSED = {
    "a share": (E("column_values_to_not_be_null", column="a", mostly=2), r".mostly: .*less than or equal to 1"),
    "what only its metrics refuse": (
        E("column_kl_divergence_to_be_less_than", column="a", partition_object={"bins": [1]}, threshold=0.1),
        ": expect_column_kl_.* refuses the value: Invalid partition",
    ),
    "a time": (E("column_values_to_be_between", column="day", max_value="soon"), r".max_value: .* refuses the value"),
    "a format that names a part twice": (
        E("column_values_to_match_strftime_format", column="a", strftime_format="%a%a"),
        ".*: expect_column_values_to_match_strftime_format refuses the value",
    ),
    "a bound that no float holds": (
        E("column_values_to_be_between", column="a", max_value=10**400),
        ".*: expect_column_values_to_be_between refuses the value",
    ),
    "a sum that no float holds": (
        E("multicolumn_sum_to_equal", column_list=["a", "a"], sum_total=10**400),
        ".*: expect_multicolumn_sum_to_equal refuses the value",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_great_expectations_refuses_is_a_mistake_in_the_suite(case: str) -> None:
    entry, said = REFUSED[case]
    with pytest.raises(SpecError, match=rf"contract.suite: expectations.0.kwargs{said}"):
        run(pa.table({"a": [1, 2], "day": TIMES["day"]}), entry)


def test_a_number_that_no_float_holds_is_compared_as_it_is() -> None:
    kwargs = {"column": "a", "value_set": [10**400, 1], "row_condition": f"a < {10**400}"}
    assert run(pa.table({"a": [1]}), E("column_values_to_be_in_set", **kwargs)).accepted
