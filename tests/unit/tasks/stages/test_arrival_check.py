"""contract.arrival: old, missing and too few data are found in every run, also where the report is reused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import ContractRejected, SpecError, UsageError
from tasks.run.options import RunOptions
from tasks.run.run import Run, open_run
from tasks.stages.validate import contract_key, validate
from tests.support.tiny import write_project

pytestmark = pytest.mark.usefixtures("home")

SUITE = {"name": "s", "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}]}
ALWAYS = [f"contract.suite={json.dumps(SUITE)}", "data.window.column=t"]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Two days: ten rows on the first, four on the second until noon."""
    spec = write_project(tmp_path / "tiny")
    rows = [f"2026-06-01T{hour:02}:00:00,{hour}" for hour in range(10)]
    rows += [f"2026-06-02T{hour:02}:00:00,{hour}" for hour in (9, 10, 11, 12)]
    (spec.parent / "rows.csv").write_text("\n".join(["t,id", *rows]) + "\n")
    return spec


def run_of(spec: Path, window: str, *overrides: str) -> Run:
    return open_run(spec, overrides=[*ALWAYS, *overrides], options=RunOptions(window=window))


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
    with pytest.raises(ContractRejected, match=wanted) as raised:
        validate(late)
    assert raised.value.details["failures"][0]["expectation"] == "arrival.max_age"
    mild = run_of(spec, SECOND, *asked, "contract.arrival.severity=warning")
    assert validate(mild) is not None
    assert mild.results["validate"].status == "reused"
    assert "the newest t is" in mild.results["validate"].sentence
    in_time = run_of(spec, SECOND, asked[0], "contract.arrival.max_age=12h")
    assert validate(in_time) is not None


def test_fewer_rows_than_in_the_window_before(spec: Path) -> None:
    asked = "contract.arrival.min_share=0.5"
    validate(run_of(spec, FIRST, asked))  # nothing to compare with
    with pytest.raises(
        ContractRejected, match=r"4 rows are 0.4 times the 10 of the window before, and min_share is 0.5"
    ):
        validate(run_of(spec, SECOND, asked))
    validate(run_of(spec, SECOND, "contract.arrival.min_share=0.4"))
    more = "contract.arrival.max_share=0.3"
    with pytest.raises(ContractRejected, match=r"0.4 times .* max_share is 0.3"):
        validate(run_of(spec, SECOND, more))
    validate(run_of(spec, "2026-06-01..2026-06-03", asked))  # no window of this length before it


def test_days_without_a_file(spec: Path) -> None:
    rows = (spec.parent / "rows.csv").read_text()
    for day in (1, 2, 4):
        (spec.parent / f"rows-2026-06-{day:02}.csv").write_text(rows)
    asked = ["data.source=rows-*.csv", 'contract.arrival.files="%Y-%m-%d"']
    validate(run_of(spec, "2026-06-01..2026-06-03", *asked))
    with pytest.raises(ContractRejected, match=r"1 day has no file \(2026-06-03\)"):
        validate(run_of(spec, "2026-06-01..2026-06-05", *asked))


def test_a_setting_that_cannot_be_judged_is_refused(spec: Path) -> None:
    with pytest.raises(SpecError, match=r"contract.arrival.max_age: '6 hours' is not a length of time"):
        run_of(spec, SECOND, "contract.arrival.column=t", "contract.arrival.max_age=6 hours")
    with pytest.raises(SpecError, match="max_age and column need each other"):
        run_of(spec, SECOND, "contract.arrival.column=t")
    for name, why in (("id", "is not a column of times"), ("u", "is not a column of times")):
        with pytest.raises(UsageError, match=rf"contract.arrival.column: {name} {why}"):
            validate(run_of(spec, SECOND, f"contract.arrival.column={name}", "contract.arrival.max_age=6h"))
