"""Messages to people: plain sentences, none of an error's own text, and the page's address if it is known."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.errors import (
    ApprovalPending,
    ContractRejected,
    GateNotMet,
    OverBudget,
    SpecError,
    TrainwrightError,
    UserCodeError,
)
from data_contracts.run_report import ModelName, RunReport, StageResult
from infra.orchestrator import events

SECRET = "{{ 7 * 7 }} <!channel> Ada Lovelace"


def report(verdict: Any, error: TrainwrightError | None = None, **more: Any) -> RunReport:
    code = error.exit_code if error else 0
    about = {"run_id": "r1", "pipeline": "sales", "verdict": verdict, "exit_code": code, "sentence": SECRET}
    return RunReport(**{**about, "stages": [], "error": error.to_json() if error else None, **more})


TRAIN = StageResult(name="train", status="failed", seconds=1, sentence=SECRET)
QUESTION = {"question": {"n": 0, "deadline": "2026-11-28T03:00:00+00:00"}}
DRIFTED, WARNED = (
    {"failures": [], "drift": {"against": SECRET, "columns": [{"column": SECRET, "verdict": verdict}]}}
    for verdict in ("critical", "warning")
)
CASES = {
    "failed": (report("failed", UserCodeError(SECRET), stages=[TRAIN]), "failed in train: user code (exit code 8)"),
    "failed without a stage": (report("failed", TrainwrightError(SECRET)), "The run failed: internal (exit code 1)"),
    "rejected": (report("rejected", ContractRejected(SECRET)), "The data broke its contract"),
    "rejected by drift alone": (
        report("rejected", ContractRejected(SECRET, details=DRIFTED)),
        "The data has drifted from",
    ),
    "rejected by a warning of drift": (
        report("rejected", ContractRejected(SECRET, details=WARNED)),
        "The data has drifted from",
    ),
    "rejected by both": (
        report("rejected", ContractRejected(SECRET, details={**DRIFTED, "failures": [{}]})),
        "The data broke its contract and has drifted",
    ),
    "waiting": (
        report("waiting", ApprovalPending(SECRET, details=QUESTION)),
        "until 2026-11-28T03:00:00+00:00: `train",
    ),
    "waiting without a question": (report("waiting", ApprovalPending(SECRET)), "promotion: `trainwright approve r1"),
    "not promoted": (report("not_promoted", GateNotMet(SECRET)), "stays where it was: gate not met."),
    "promoted": (
        report("promoted", model=ModelName(name="sales", version=3, alias="champion")),
        "Version 3 of sales (alias champion) was promoted.",
    ),
    "canary": (report("canary", model=ModelName(name="sales", version=4, alias=None)), "Version 4 of sales stands"),
    "over budget": (report("over_budget", OverBudget(SECRET)), "The run ended over budget."),
}


@pytest.mark.parametrize(("of", "wanted"), CASES.values(), ids=CASES)
def test_a_run_s_end_in_words(of: RunReport, wanted: str) -> None:
    message = events.report_notice(of, "http://here/run")
    assert wanted in message["body"]
    assert message["body"].endswith("Run: r1. To read more: `trainwright show r1`.\nPage: http://here/run")
    assert message["subject"].startswith("sales: ")
    assert not [part for part in SECRET.split() if part in message["body"].split()]


def test_what_is_not_a_run_s_end() -> None:
    unopened = events.unopened_notice("sales", SpecError(SECRET), "http://here/run")["body"]
    assert unopened.endswith("failed before it began: spec (exit code 2).\nPage: http://here/run")
    assert "internal (exit code 1)" in events.unopened_notice("sales", ValueError(SECRET), None)["body"]
    assert "3 columns differ" in events.drift_notice("sales", "r1", 3, False, None)["body"]
    assert "rejected because of it" in events.drift_notice("sales", "r1", 1, True, None)["body"]
    assert events.rollback_notice("sales@champion", 2, 3)["body"].startswith(
        "sales@champion names version 2, no longer ve"
    )
    assert "names no version" in events.rollback_notice("sales@champion", None, None)["body"]
