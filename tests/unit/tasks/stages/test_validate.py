"""validate: what it says of data that nothing can be checked in."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import OutOfMemory, SpecError, UsageError
from data_contracts.handoffs import ContractReport
from data_contracts.pipeline_spec import SourceSpec
from flows.cli import main
from infra.contract import contract_worker
from infra.sources import resolve_sources
from tasks.queries.plan import plan
from tasks.run.resolve import RunOptions
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import contract_check
from tasks.stages.contract_check import raw_inputs
from tasks.stages.stage import StageOutcome
from tasks.stages.validate import contract_key, make_report, named_by_folders, validate
from tests.support.files import write_files
from tests.support.runs import make_run
from tests.support.tiny import write_rows

pytestmark = pytest.mark.usefixtures("home")
COLUMN = {"kwargs": {"column": "id"}}
REJECTED = "The contract rejects the data:"
YEAR = "2027-01-01T00:00:00+00:00..2028-01-01T00:00:00+00:00"
SENTENCES = {
    "a window after the rows": (
        "t,id\n2026-06-01,1\n",
        "2027-01-01..2028-01-01",
        f"{REJECTED} no row is in the window {YEAR}. Check --window and data.window.column.",
    ),
    "no window": (
        "t,id\n",
        None,
        f"{REJECTED} the data has no rows. Correct the data, or change the suite if the data is right.",
    ),
}


def opened(spec: Path, *expectations: dict[str, Any], overrides: Sequence[str] = ()) -> Run:
    suite = json.dumps({"name": "s", "expectations": expectations or [{"type": "expect_column_to_exist", **COLUMN}]})
    return open_run(read_spec(spec, [f"contract.suite={suite}", *overrides]), recorded=False)


def report_of(run: Run) -> StageOutcome[ContractReport]:
    return make_report(run, str(contract_key(run)))


@pytest.mark.parametrize(("rows", "window", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_a_rejection_without_rows_says_whether_the_window_is_the_reason(
    rows: str, window: str | None, sentence: str, spec: Path
) -> None:
    (spec.parent / "rows.csv").write_text(rows)
    asked = read_spec(spec, ["data.window.column=t"] if window else [])
    run = open_run(asked, options=RunOptions(window=window), recorded=False)
    assert str(report_of(run).error) == sentence


def test_a_pattern_is_searched_for_in_a_process_of_its_own(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec.parent / "rows.csv").write_text(f"t,id\nab 1,1\n{'a' * 60}!,2\n")
    monkeypatch.setattr(contract_worker, "main", lambda *_: pytest.fail("it was searched for beside the lease"))
    matches = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "t", "regex": r"^(\w+\s?)*$"}}
    done = validate.find_or_make(opened(spec, matches))
    assert "expect_column_values_to_match_regex on t: 1 of 2 rows (row 1) broke it" in str(done.error)


def test_a_file_that_takes_more_than_the_specs_share_of_the_memory_ends_the_stage_alone(spec: Path) -> None:
    run = opened(spec, overrides=["data.memory_share=1e-6"])
    assert contract_key(run) == contract_key(opened(spec))
    with pytest.raises(OutOfMemory, match=r"t took more than 0\.0 GiB of memory.*data\.memory_share"):
        report_of(run)


def test_a_plan_names_what_runs_on_great_expectations_and_why(spec: Path) -> None:
    listed = [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "t"}},
        {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "t", "regex": r"\b"}},
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id", "row_condition": "not id > 3"}},
    ]
    first, all_three = (plan(opened(spec, *listed[:count]), [validate])[0].why for count in (1, 3))
    assert first == "there is no accepted contract report for this data and suite"
    assert all_three.endswith(
        "; 2 of 3 expectations run on Great Expectations: expect_column_values_to_match_regex on t (its argument"
        " regex has no exact translation), expect_column_values_to_be_unique on id (its row_condition has no exact"
        " translation)"
    )


def test_a_contract_that_holds_is_checked_without_great_expectations(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec.parent / "rows.csv").write_text("t,id\na,1\nb,2\n")
    monkeypatch.setattr(contract_worker, "load_great_expectations", lambda: pytest.fail("it was imported"))
    monkeypatch.setattr(
        contract_check, "run_here", lambda run, child, request, **_: contract_worker.main(request, lambda _: None)
    )
    unique = {"type": "expect_column_values_to_be_unique", **COLUMN}
    assert report_of(opened(spec, unique)).sentence == "2 rows meet 1 expectation"


def test_the_report_of_a_rejection_is_written_out_too(spec: Path, tmp_path: Path) -> None:
    (spec.parent / "rows.csv").write_text("t,id\n")
    assert main(["validate", str(spec), "--out", str(tmp_path / "report.json")]) == 3
    report = ContractReport.from_json(json.loads((tmp_path / "report.json").read_text()))
    assert (report.accepted, report.rows) == (False, 0)


CHECKS = """
from great_expectations.expectations.core import ExpectColumnValuesToBeInSet


class ExpectLabels(ExpectColumnValuesToBeInSet):
    column: str = "label"
    value_set: list = [0, 1]
"""


@pytest.mark.warm
def test_an_expectation_of_the_users_own_runs_in_a_child_and_its_code_decides_the_key(spec: Path) -> None:
    (spec.parent / "checks.py").write_text(CHECKS)

    own = {"class_path": "checks.ExpectLabels"}
    run, plain = opened(spec, own), contract_key(opened(spec))
    key = contract_key(run)
    assert plan(run, [validate])[0].why.endswith(
        "1 of 1 expectations run on Great Expectations: checks.ExpectLabels (it is a class of your own)"
    )
    done = validate.find_or_make(run)
    assert (done.status, done.sentence) == ("ran", "600 rows meet 1 expectation")
    assert "checks" not in sys.modules
    assert validate.find_or_make(opened(spec, own)).status == "reused"
    (spec.parent / "checks.py").write_text(CHECKS.replace("[0, 1]", "[1]"))
    assert contract_key(opened(spec, own)) != key
    assert contract_key(opened(spec)) == plain
    with pytest.raises(SpecError, match="expectations.0.class_path: 'checks.ExpectLabel': there is no"):
        opened(spec, {"class_path": "checks.ExpectLabel"})


ADDRESS = "tcp://scheduler:8786"
ON_DASK = f"contract.runner={{dask: '{ADDRESS}', scratch: /shared}}"


def test_a_cluster_is_no_part_of_the_key_and_a_plan_says_what_it_does(
    spec: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_rows(spec.parent / "rows-2.csv", rows=10)
    listed = [{"type": f"expect_column_values_to_{name}", **COLUMN} for name in ("be_unique", "not_be_null")]
    one = opened(spec, *listed, overrides=[ON_DASK])
    two = opened(spec, *listed, overrides=[ON_DASK, "data.source=rows*.csv"])
    assert contract_key(one) == contract_key(opened(spec, *listed))
    alone = "contract.runner has no effect, because there is one file: this machine checks the data"
    assert plan(one, [validate])[0].why.endswith(f"; {alone}")
    assert report_of(one).status == "ran"
    assert f"validate: {alone}" in caplog.messages
    assert "less than 1 MiB on average" in plan(two, [validate])[0].why
    monkeypatch.setattr(contract_check, "LEAST_BYTES", 1)
    assert plan(two, [validate])[0].why.endswith(
        f"; the Dask cluster at {ADDRESS} measures new files; 1 of 2 expectations do not add up over files, and read "
        "their columns of all files on this machine"
    )
    with pytest.raises(UsageError, match="contract.runner.scratch: no folder can be made in /shared"):
        report_of(two)


def test_columns_that_folders_name_are_in_the_plan_and_in_the_key(tmp_path: Path) -> None:
    write_files(tmp_path, {"d/fold=train/a.csv": "x\n0\n", "d/fold=val/a.csv": "x\n1\n"})
    found = {}
    for taken in (True, False):
        sources = [SourceSpec(uri="d", hive_partitioning=taken)]
        found[taken] = resolve_sources(
            sources, root=tmp_path, window=None, window_path=None, cache=tmp_path / "cache", rehash=False
        )
    plans = {taken: named_by_folders(make_run(files=files)) for taken, files in found.items()}
    assert plans == {True: "columns from folders' names: fold (string)", False: ""}
    before = [{"blake3": file.blake3, "format": "csv", "columns": {}, "source": 0} for file in found[False]]
    assert raw_inputs(found[False]) == before  # the key of a store that was made without these columns
    assert [one["columns"] for one in raw_inputs(found[True])] == [{"fold": "train"}, {"fold": "val"}]
