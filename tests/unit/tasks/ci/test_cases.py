"""The cases of a run: what was checked, how it ended, and nothing that a stranger must not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.contract.suites import load_suite, suite_digest
from data_contracts.errors import (
    Cancelled,
    ContractRejected,
    GateNotMet,
    SpecError,
    StorageUnavailable,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.handoffs import ContractReport, Failure, Quarantine
from data_contracts.records import GateResult
from data_contracts.run_report import CiReport, ModelName, RunReport, StageResult, StageStatus
from tasks import ci as ci_report
from tasks.ci import report_of_error, report_of_run
from tasks.pages.facts import Facts
from tasks.run.report import VERDICTS
from tasks.stages.validate import accepted
from tests.support.runs import make_run
from tests.support.tiny import SPEC, write_project

SECRET = "17.5 Ada Lovelace"
BETWEEN = "`a` is at least -1 and at most 1 in every row"


@pytest.fixture(scope="module")
def spec_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("cases"))


def failure(index: int = 0, severity: str = "critical", **more: Any) -> Failure:
    """A failure whose every text has a value of a row."""
    shown = {"row_numbers": [2], "values": [SECRET], "observed": SECRET, "sentence": f"broke it, such as {SECRET}"}
    return Failure.model_validate(
        {"expectation": "x", "column": "a", "severity": severity, "rows": 1, "of": 600, "index": index, **shown, **more}
    )


def contract(*failures: Failure, accepted: bool = True, aside: Quarantine | None = None) -> Any:
    return {"failures": list(failures), "accepted": accepted, "quarantine": aside}


def ended(error: TrainwrightError | None, last: str = "promote", status: StageStatus = "ran") -> RunReport:
    names = list(ci_report.SECTIONS)
    before = names[: names.index(last)]
    stages = [StageResult(name=name, status="reused", seconds=1, sentence=f"{name} is there") for name in before]
    said = error.message if error is not None else "tiny@champion is version 1"
    return RunReport(
        run_id="20261126-010029-7717a3",
        pipeline="tiny",
        verdict=VERDICTS.get(error.exit_code, "failed") if error is not None else "promoted",
        exit_code=error.exit_code if error is not None else 0,
        sentence=said,
        stages=[*stages, StageResult(name=last, status=status, seconds=1, sentence=said)],
        error=error.to_json() if error is not None else None,
        model=ModelName(name="tiny", version=1, alias="champion"),
    )


def facts(spec_path: Path, report: RunReport, checked: Any = None, sensitive: tuple[str, ...] = ()) -> Facts:
    suite = load_suite("suite.json", spec_path.parent)
    run = make_run(spec={**SPEC, "data": {"source": "rows.csv", "sensitive": list(sensitive)}}, suite=suite)
    made = None
    if checked is not None:
        made = ContractReport(key="k", rows=600, expectations=3, suite_digest=suite_digest(suite), **checked)
    return Facts(run=run, report=report, stages=report.stages, contract=made)


def ends(report: Any, kind: Any) -> dict[str, tuple[str, str]]:
    return {case.name: (case.status, case.sentence) for case in report.of_kind(kind)}


@pytest.mark.parametrize(
    ("checked", "status", "sentence"),
    [
        (contract(failure(), accepted=False), "failed", "critical: broken by 1 of 600 rows."),
        (contract(failure(severity="warning")), "warned", "warning: broken by 1 of 600 rows."),
        (contract(failure(severity="info"), failure(1), accepted=False), "warned", "info: broken by 1 of 600 rows."),
        (contract(failure(rows=0), accepted=False), "failed", "critical: broken."),
        (contract(aside=Quarantine(rows=1, broken=[failure()])), "warned",
         "critical: broken by 1 of 600 rows, which were set aside."),
        (contract(failure(1), accepted=False), "passed", ""),
    ],
)  # fmt: skip
def test_an_expectation_has_its_severity_and_numbers_alone(
    checked: Any, status: str, sentence: str, spec_path: Path
) -> None:
    error = None if checked["accepted"] else ContractRejected(f"rejected, such as {SECRET}")
    report = ended(error, "promote" if error is None else "validate", "ran" if error is None else "rejected")
    made = report_of_run(report, facts(spec_path, report, checked))
    assert ends(made, "expectation")[BETWEEN] == (status, sentence)
    assert [case.entry for case in made.of_kind("expectation")] == [0, 1, 2]
    assert SECRET not in json.dumps(made.to_json())


@pytest.mark.parametrize("kind", [UserCodeError, StorageUnavailable, GateNotMet, TrainwrightError, Cancelled])
@pytest.mark.parametrize("sensitive", [(), ("a",)])
def test_no_text_of_an_error_is_in_it(kind: Any, sensitive: tuple[str, ...], spec_path: Path) -> None:
    error = kind(f"cannot read {SECRET}", remedy=SECRET, user_traceback=SECRET, details={"x": SECRET})
    report = ended(error, "train", "failed")
    made = report_of_run(report, facts(spec_path, report, contract(failure(severity="info")), sensitive))
    assert (made.exit_code, made.cause, made.verdict) == (kind.exit_code, kind.cause, report.verdict)
    assert SECRET not in json.dumps(made.to_json())
    assert made.model is None, "the alias still names another run's version"
    stages = ends(made, "stage")
    assert [status for status, _ in stages.values()] == ["passed"] * 2 + ["failed"] + ["skipped"] * 3
    assert ("-1" in json.dumps(made.to_json())) == (not sensitive), "bounds may be values of a sensitive column"
    assert stages["validate"][1] == ("reused" if sensitive else "reused: 600 rows; 2 of 3 expectations met")


@pytest.mark.parametrize("aside", [None, Quarantine(rows=1, broken=[failure()])], ids=["warned", "set aside"])
def test_what_a_stage_says_of_accepted_data_and_of_persons_stays_out(aside: Quarantine | None, spec_path: Path) -> None:
    checked = contract(failure(severity="warning"), aside=aside)
    said = accepted(ContractReport(key="k", rows=600, expectations=3, suite_digest="", **checked))
    assert SECRET in said
    report = ended(None)
    stages = [one.model_copy(update={"sentence": f"{said}; {SECRET} lifted its hold"}) for one in report.stages]
    report = report.model_copy(update={"stages": stages})
    made = report_of_run(report, facts(spec_path, report, checked))
    assert SECRET not in json.dumps(made.to_json())
    met = "600 rows; 2 of 3" if aside is None else "600 rows, 1 of them set aside; 2 of 3"
    assert ends(made, "stage")["validate"] == ("passed", f"reused: {met} expectations met")


def test_gates_are_those_of_the_spec_with_what_they_found(spec_path: Path) -> None:
    found = [
        GateResult(metric="accuracy", met=False, value=0.5, bound=0.8, sentence="accuracy is 0.5"),
        GateResult(metric="onnx", met=True, value=0, bound=0, sentence="outputs are equal"),
    ]
    report = ended(GateNotMet("no", details={"gates": [gate.to_json() for gate in found]}), "promote", "rejected")
    made = report_of_run(report, facts(spec_path, report))
    assert ends(made, "gate") == {
        "accuracy: min 0.8": ("failed", "accuracy is 0.5"),
        "accuracy: min_gain 0": ("skipped", "It was not computed."),
        "onnx": ("passed", "outputs are equal"),
    }
    assert [case.field for case in made.of_kind("gate")] == [
        ("promote", "gates", 0),
        ("promote", "gates", 1),
        ("promote",),
    ]


@pytest.mark.parametrize("code", [-1, 256])
def test_an_exit_code_that_a_shell_would_read_as_another_is_refused(code: int) -> None:
    made = report_of_run(ended(UserCodeError("x"), "train", "failed"), None).to_json()
    assert CiReport.from_json(made).exit_code == 8
    with pytest.raises(ValidationError):
        CiReport.from_json({**made, "exit_code": code})


def test_a_store_that_cannot_be_read_leaves_the_stages() -> None:
    made = report_of_run(ended(None), None)
    assert {case.kind for case in made.cases} == {"stage"}
    assert (made.version, made.exit_code) == ("tiny@champion version 1", 0)


def test_a_mistake_in_the_spec_keeps_its_text_and_place_unless_columns_are_sensitive(spec_path: Path) -> None:
    error = SpecError("a/pipeline.yaml:3: train.sead: unknown key\n--set: x: y\na/pipeline.yaml:3: b: no")
    wanted = [
        ("a/pipeline.yaml:3", "train.sead: unknown key", "a/pipeline.yaml:3"),
        ("spec", "--set: x: y", ""),
        ("a/pipeline.yaml:3 (2)", "b: no", "a/pipeline.yaml:3"),
    ]
    alone = report_of_error(error, "tiny")
    assert [(one.name, one.sentence, one.place) for one in alone.cases] == wanted
    assert (alone.run_id, alone.exit_code, alone.cause) == ("", 2, "spec")
    report = ended(error, "validate", "failed")
    assert len(report_of_run(report, facts(spec_path, report)).of_kind("spec")) == 3
    assert report_of_run(report, facts(spec_path, report, sensitive=("a",))).of_kind("spec") == []


@pytest.mark.parametrize(
    ("error", "verdict", "sentence"),
    [
        (StorageUnavailable(SECRET), "failed", "It ended before there was a run: storage (exit code 5)."),
        (
            TrainwrightError(SECRET),
            "failed",
            "An internal error of Trainwright ended the job; its log says where the traceback is.",
        ),
        (Cancelled(SECRET), "cancelled", "The job was cancelled."),
    ],
)
def test_what_ended_before_a_run_is_told_by_its_cause(error: TrainwrightError, verdict: str, sentence: str) -> None:
    made = report_of_error(error, "tiny")
    assert (made.verdict, made.sentence, made.exit_code) == (verdict, sentence, error.exit_code)
