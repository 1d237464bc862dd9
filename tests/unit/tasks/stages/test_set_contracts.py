"""Evaluation sets with rows of their own are held to a contract in validate: which, when it is reused, what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import SpecError
from infra.contract import contract_worker
from infra.contract.file_statistics import read_profile
from tasks.queries.plan import plan
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import contract_check
from tasks.stages import validate as stage
from tasks.stages.shard import shard
from tasks.stages.validate import set_report, set_requests, validate
from tests.support.tiny import SPEC, write_project, write_rows

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.warm]
OWN = {"suite": {"name": "own", "expectations": [
    {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 40}},
    {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "label"}, "severity": "warning"},
]}}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        contract_check, "run_here", lambda run, child, request, **_: contract_worker.main(request, lambda _: None)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_rows(folder / "hard.csv", 40, seed=2)
    return folder


def opened(folder: Path, contract: Any = None, *overrides: str, **data: Any) -> Run:
    one = {"source": "hard.csv", **({} if contract is None else {"contract": contract})}
    spec = {"evaluate": {**SPEC["evaluate"], "sets": {"hard": one}}, "data": {"source": "rows.csv", **data}}
    return open_run(read_spec(write_project(folder, spec), list(overrides)), recorded=False)


def spoil(folder: Path) -> None:
    path = folder / "hard.csv"
    lines = path.read_text().splitlines()
    lines[4] = "3,7.5,0.1,0.1,1"
    path.write_text("\n".join(lines) + "\n")


def test_by_default_a_set_is_held_to_the_same_suite_and_checked_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(folder)
    assert plan(run, [validate])[0].action == "run"
    done = validate.find_or_make(run)
    assert done.error is None
    assert done.sentence == "600 rows meet 3 expectations; evaluate.sets.hard: 40 rows meet 3 expectations"
    monkeypatch.setattr(stage, "checked", lambda *_: pytest.fail("it was checked again"))
    again = validate.find_or_make(opened(folder))
    assert (again.status, again.sentence) == ("reused", done.sentence)


def test_a_set_that_breaks_it_is_rejected_by_name_with_column_count_and_rows(folder: Path) -> None:
    spoil(folder)
    run = opened(folder, None, "contract.quarantine.max_share=0.9")  # which is not for sets
    done = validate.find_or_make(run)
    assert done.error.exit_code == 3
    said = "evaluate.sets.hard: The contract rejects the data: expect_column_values_to_be_between on a: 1 of 40 rows"
    assert done.error.message.startswith(said)
    step, after = plan(opened(folder, None, "contract.quarantine.max_share=0.9"), [validate, shard])
    assert step.action == "reuse"
    assert said in step.why
    assert after.action == "skip"
    assert validate.find_or_make(opened(folder, "none")).error is None


def test_a_set_may_have_a_suite_of_its_own(folder: Path) -> None:
    spoil(folder)
    done = validate.find_or_make(opened(folder, OWN))
    assert done.error is None
    assert "evaluate.sets.hard: 40 rows meet 1 of 2 expectations; expect_column_values_to_be_unique" in done.sentence
    strict = validate.find_or_make(opened(folder, {**OWN, "fail_on": "warning"}))
    assert strict.error is not None


def test_a_set_that_is_not_checked_yet_is_checked_without_the_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = open_run(read_spec(write_project(folder)), recorded=False)
    assert validate.find_or_make(alone).status == "ran"
    run = opened(folder)
    assert plan(run, [validate])[0].why.startswith("the rows of evaluate.sets.hard are not checked yet")
    checked = Mock(wraps=contract_check.run_here)
    monkeypatch.setattr(contract_check, "run_here", checked)
    assert validate.find_or_make(run).status == "ran"
    [call] = checked.call_args_list
    assert [Path(file.uri).name for file in call.args[2].files] == ["hard.csv"]


def test_the_dataset_of_a_set_names_the_report_that_accepted_it(folder: Path) -> None:
    run = opened(folder)
    report = validate(run)
    shard(run, report)
    [request] = set_requests(run).values()
    found = set_report(run, request)
    assert read_profile(run.store, found.ref) is None  # a set may hold a sensitive column under another name
    assert read_profile(run.store, report.ref) is not None
    names = run.store.list("datasets")
    parents = [run.store.manifest(f"datasets/{name}").provenance["parents"] for name in names]
    assert sorted(parent["uri"] for [parent] in parents) == sorted([found.ref.uri, report.ref.uri])


def test_a_set_need_not_have_every_sensitive_column(folder: Path) -> None:
    (folder / "hard.csv").write_text("a,b,label\n0.5,0.1,1\n7.5,0.1,1\n")
    done = validate.find_or_make(opened(folder, sensitive=["c", "a"]))
    assert "a: 1 of 2 rows (row 1)" in done.error.message
    assert "7.5" not in json.dumps(done.error.to_json())


def test_an_expectation_that_cannot_be_is_refused_with_the_set_s_field(folder: Path) -> None:
    wrong = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": "x"}}
    run = opened(folder, {"suite": {"name": "s", "expectations": [wrong]}})
    with pytest.raises(SpecError, match=r"evaluate\.sets\.hard\.contract\.suite: expectations\.0"):
        validate.find_or_make(run)
