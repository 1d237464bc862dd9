"""contract.arrival: old, missing and too few data are found in every run, also where the report is reused."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.errors import ContractRejected, UsageError
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages.validate import contract_key, validate

pytestmark = pytest.mark.usefixtures("home")

SUITE = {"name": "s", "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}]}
ALWAYS = [f"contract.suite={json.dumps(SUITE)}", "data.window.column=t"]


@pytest.fixture
def spec(spec: Path) -> Path:
    """Two days: ten rows on the first, four on the second until noon."""
    rows = [f"2026-06-01T{hour:02}:00:00,{hour}" for hour in range(10)]
    rows += [f"2026-06-02T{hour:02}:00:00,{hour}" for hour in (9, 10, 11, 12)]
    (spec.parent / "rows.csv").write_text("\n".join(["t,id", *rows]) + "\n")
    return spec


def run_of(spec: Path, window: str, *overrides: str) -> Run:
    return open_run(read_spec(spec, [*ALWAYS, *overrides]), options=RunOptions(window=window))


def rejected(run: Run, words: str) -> ContractRejected:
    """The error, with these words, with which the run's data is rejected."""
    with pytest.raises(ContractRejected, match=words) as raised:
        validate(run)
    return raised.value


FIRST, SECOND = "2026-06-01..2026-06-02", "2026-06-02..2026-06-03"


def test_old_rows_reject_also_when_the_report_is_reused(spec: Path) -> None:
    plain, asked = run_of(spec, SECOND), ["contract.arrival.column=t", "contract.arrival.max_age=6h"]
    validate(plain)
    late = run_of(spec, SECOND, *asked)
    assert contract_key(late) == contract_key(plain)
    wanted = (
        r"The contract rejects the data: the newest t is 2026-06-02 12:00 UTC, 12.0 hours before 2026-06-03 00:00, "
        r"and max_age is 6h\."
    )
    assert rejected(late, wanted).details["failures"][0]["expectation"] == "arrival.max_age"
    mild = run_of(spec, SECOND, *asked, "contract.arrival.severity=warning")
    assert validate(mild) is not None
    assert mild.live.results["validate"].status == "reused"
    assert "the newest t is" in mild.live.results["validate"].sentence
    in_time = run_of(spec, SECOND, asked[0], "contract.arrival.max_age=12h")
    assert validate(in_time) is not None


def test_fewer_rows_than_in_the_window_before(spec: Path) -> None:
    asked = "contract.arrival.min_share=0.5"
    validate(run_of(spec, FIRST, asked))  # nothing to compare with
    rejected(run_of(spec, SECOND, asked), "4 rows are 0.4 times the 10 of the window before, and min_share is 0.5")
    validate(run_of(spec, SECOND, "contract.arrival.min_share=0.4"))
    rejected(run_of(spec, SECOND, "contract.arrival.max_share=0.3"), "0.4 times .* max_share is 0.3")
    validate(run_of(spec, "2026-06-01..2026-06-03", asked))  # no window of this length before it


def test_a_rejected_run_is_not_the_volume_before(spec: Path) -> None:
    def run_with(rows: int) -> Run:
        (spec.parent / "rows.csv").write_text("t,id\n" + "2026-06-01,1\n" * rows)
        return open_run(read_spec(spec, [ALWAYS[0], "contract.arrival.min_share=0.5"]))

    validate(run_with(100))
    for rows in (2, 3, 0, 1):  # the second would be enough beside the first, and none beside none
        rejected(run_with(rows), f"{rows} rows are 0.0{rows} times the 100" if rows else "no rows")


def test_rows_of_an_earlier_window(spec: Path) -> None:
    """A file that was delivered for the second day holds rows of the first."""
    (spec.parent / "d-2026-06-02.csv").write_text((spec.parent / "rows.csv").read_text())
    delivered = ["data.source=d-{{ start }}.csv", 'data.window={"path": "%Y-%m-%d"}', "contract.arrival.column=t"]
    late = "10 of 14 rows (71.429%) have a time in t before the window, which begins at 2026-06-02 00:00 UTC"
    error = rejected(run_of(spec, SECOND, *delivered, "contract.arrival.max_late=0.7"), re.escape(late))
    [failure] = error.details["failures"]
    assert (failure["expectation"], failure["column"], failure["rows"]) == ("arrival.max_late", "t", 10)
    assert validate(run_of(spec, SECOND, *delivered, "contract.arrival.max_late=0.72")) is not None


def test_one_row_of_long_ago_hides_no_late_rows(spec: Path) -> None:
    """It makes the profile's bins so wide that the window begins in the middle of most rows."""
    start = int(datetime(2026, 6, 2, tzinfo=UTC).timestamp())
    seconds = np.concatenate([[start - 50 * 365 * 86400], start + np.arange(-3000, 3000)])
    times = pa.array(seconds * 10**6, pa.timestamp("us"))
    pq.write_table(pa.table({"t": times, "id": range(6001)}), spec.parent / "d-2026-06-02.parquet")
    delivered = ["data.source=d-{{ start }}.parquet", 'data.window={"path": "%Y-%m-%d"}', "contract.arrival.column=t"]
    late = re.escape("3,001 of 6,001 rows (50.008%) have a time in t before")
    rejected(run_of(spec, SECOND, *delivered, "contract.arrival.max_late=0.5"), late)
    assert validate(run_of(spec, SECOND, *delivered, "contract.arrival.max_late=0.51")) is not None


def test_times_that_datetime_does_not_have(spec: Path) -> None:
    times = pa.array([10**18, 4 * 10**17], pa.timestamp("us"))
    pq.write_table(pa.table({"t": times, "id": [1, 2]}), spec.parent / "far.parquet")
    asked = ["data.source=far.parquet", "contract.arrival.column=t", "contract.arrival.max_age=6h"]
    assert validate(open_run(read_spec(spec, [ALWAYS[0], *asked]))) is not None
    pq.write_table(pa.table({"t": pa.array([-(10**18)], times.type), "id": [1]}), spec.parent / "far.parquet")
    rejected(open_run(read_spec(spec, [ALWAYS[0], *asked])), "the newest t is before the year 1, ")


def test_days_without_a_file(spec: Path) -> None:
    rows = (spec.parent / "rows.csv").read_text()
    for day in (1, 2, 4):
        (spec.parent / f"rows-2026-06-{day:02}.csv").write_text(rows)
    asked = ["data.source=rows-*.csv", 'contract.arrival.files="%Y-%m-%d"']
    validate(run_of(spec, "2026-06-01..2026-06-03", *asked))
    for window in ("2026-06-01..2026-06-05", "2026-06-01T12:00..2026-06-03T06:00"):  # also of a part of the last day
        rejected(run_of(spec, window, *asked), r"1 day has no file \(2026-06-03\)")


def test_a_column_that_has_no_times_is_refused(spec: Path) -> None:
    for name, why in (("id", "is not a column of times"), ("u", "is not in the data; it has t, id.")):
        with pytest.raises(UsageError, match=rf"contract.arrival.column: {name} {why}"):
            validate(run_of(spec, SECOND, f"contract.arrival.column={name}", "contract.arrival.max_age=6h"))
