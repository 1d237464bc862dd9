"""The engine and times, and what it keeps to itself: nothing printed, nothing read or loaded without need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_a_value_that_gx_refuses_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match=r"contract.suite: expectations.0.kwargs.mostly: .*less than or equal to 1"):
        run(pa.table({"a": [1]}), E("column_values_to_not_be_null", column="a", mostly=2))


def test_an_argument_that_gx_refuses_only_when_it_asks_for_metrics_is_a_spec_error() -> None:
    entry = E("column_kl_divergence_to_be_less_than", column="a", partition_object={"bins": [1]}, threshold=0.1)
    said = "contract.suite: expectations.0.kwargs: expect_column_kl_.* refuses the value: Invalid partition"
    with pytest.raises(SpecError, match=said):
        run(pa.table({"a": [1]}), entry)


def test_a_time_that_is_none_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match=r"expectations.0.kwargs.max_value: .* refuses the value"):
        run(pa.table(TIMES), E("column_values_to_be_between", column="day", max_value="soon"))


def test_only_the_columns_that_are_needed_are_read() -> None:
    table = pa.table({"a": [1], "b": [1], "c": [1], "big": [b"x"]})
    seen: list[list[str] | None] = []
    told = suite(
        E("column_values_to_be_between", column="a", max_value=2, row_condition="b > 0", condition_parser="pandas"),
        E("column_mean_to_be_between", column="c"),
        E("table_columns_to_match_set", column_set=["a", "b", "c", "big"]),
    )
    assert check(told, reader(table, seen=seen), fail_on="critical", sensitive=[], resources=None).accepted
    assert seen == [None, ["a", "b"], ["c"]]


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


def test_a_scan_reads_its_columns_once_and_only_what_is_broken_is_read_again() -> None:
    table = pa.table({"a": [1, 5], "b": ["x", "y"], "big": [b"x", b"y"]})
    seen: list[list[str] | None] = []
    told = suite(
        E("column_values_to_not_be_null", column="b"),
        E("column_values_to_be_between", column="a", max_value=2),
        E("table_row_count_to_equal", value=2),
    )
    found = check(told, reader(table, seen=seen), fail_on="critical", sensitive=[], resources=RESOURCES)
    assert [failure.row_numbers for failure in found.failures] == [[1]]
    assert seen == [None, ["a", "b"], ["a"]]


def test_rows_are_counted_where_no_column_is_measured() -> None:
    seen: list[list[str] | None] = []
    told = suite(E("table_row_count_to_equal", value=2), E("column_to_exist", column="big"))
    nested = pa.table({"big": [["x"], ["y"]]})
    found = check(told, reader(nested, seen=seen), fail_on="critical", sensitive=[], resources=RESOURCES)
    assert (found.accepted, found.rows, seen) == (True, 2, [None, ["big"]])


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("column_values_to_match_strftime_format", {"column": "a", "strftime_format": "%a%a"}),
        ("column_values_to_be_between", {"column": "a", "max_value": 10**400}),
        ("multicolumn_sum_to_equal", {"column_list": ["a", "a"], "sum_total": 10**400}),
    ],
)
def test_a_value_that_great_expectations_cannot_hold_is_refused(kind: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=rf"expectations.0.kwargs.*: expect_{kind} refuses the value"):
        run(pa.table({"a": [1]}), E(kind, **kwargs))


def test_a_number_that_no_float_holds_is_compared_as_it_is() -> None:
    kwargs = {"column": "a", "value_set": [10**400, 1], "row_condition": f"a < {10**400}"}
    assert run(pa.table({"a": [1]}), E("column_values_to_be_in_set", **kwargs)).accepted
