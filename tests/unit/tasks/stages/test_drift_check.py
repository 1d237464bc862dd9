"""Drift in validate and in `trainwright drift`: what is compared, what rejects, what is said where nothing can be."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from data_contracts.errors import ContractRejected, SpecError, TrainwrightError, UsageError
from data_contracts.handoffs import ContractReport, Failure
from data_contracts.load import load_spec
from data_contracts.records import ColumnDrift, DriftReport
from flows.commands.deploy import _refuse_never
from infra.contract.file_statistics import PROFILE_FILE
from infra.orchestrator.automations import ACCEPTS
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import contract_check
from tasks.stages.contract_check import drift_alone_rejects
from tasks.stages.validate import contract_key, validate
from tests.support.commands import json_of, output_of
from tests.support.runs import make_run
from tests.support.tiny import SPEC

pytestmark = pytest.mark.usefixtures("home")


def run_of(spec: Path, *overrides: str) -> Run:
    return open_run(read_spec(spec, overrides), recorded=False)


def move(spec: Path) -> None:
    """Every value of `c` becomes 0.9."""
    path = spec.parent / "rows.csv"
    pd.read_csv(path, float_precision="round_trip").assign(c=0.9).to_csv(path, index=False)


def test_without_the_section_no_key_changes_and_a_champion_may_come_later(spec: Path) -> None:
    plain, asked = run_of(spec), run_of(spec, "contract.drift.fail_on=warning")
    assert plain.resolved.drift is None
    assert "drift" not in plain.resolved.spec["contract"]
    assert contract_key(asked, drift=False) == contract_key(plain) != contract_key(asked)
    report = validate(asked)
    assert report.accepted
    assert report.drift.note == "there is no tiny@champion yet, so the data is compared with nothing"


def test_data_that_moved_is_told_and_rejected_only_if_asked(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = validate(run_of(spec))
    against = f"contract.drift.against={first.ref.uri}"
    same = validate(run_of(spec, against))
    assert {one.verdict for one in same.drift.columns} == {"same"}

    move(spec)
    told = run_of(spec, against)
    report = validate(told)
    assert [one.column for one in report.drift.moved] == ["c"]
    assert report.drift.verdict == "critical"
    assert "columns moved against contracts/" in told.live.results["validate"].sentence
    # Another comparison of the same data reads nothing.
    monkeypatch.setattr(contract_check, "run_here", lambda *_, **__: pytest.fail("the data was read again"))
    with pytest.raises(ContractRejected, match=r"rejects the data: 1 of 5 columns moved.*fail_on=never\."):
        validate(run_of(spec, against, "contract.drift.fail_on=critical"))
    ignored = validate(run_of(spec, against, "contract.drift.fail_on=warning", "contract.drift.ignore=[c]"))
    assert ignored.accepted
    with pytest.raises(
        UsageError, match=r"contract.drift.columns: neither the data nor the earlier data has a column d"
    ):
        validate(run_of(spec, against, "contract.drift.columns=[d]"))


def test_the_command_prints_what_moved_and_ends_with_3_if_asked(
    spec: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = validate(run_of(spec))
    run = run_of(spec)
    fixed = spec.parent / "fixed.json"
    fixed.write_bytes((Path(run.store.uri) / first.ref.uri / PROFILE_FILE).read_bytes())
    assert output_of(capsys, "drift", str(spec)).startswith("There is no tiny@champion yet")
    arguments = ["drift", str(spec), "--against", "fixed.json"]
    same = output_of(capsys, *arguments, "--fail-on", "warning")
    assert same.startswith("No column has moved against fixed.json.\n")
    move(spec)
    out = tmp_path / "drift.json"
    text = output_of(capsys, *arguments, "--out", str(out))
    assert text.startswith("1 of 5 columns moved against fixed.json.\nrows then 600, now 600\n")
    assert "critical" in text
    said = json_of(capsys, *arguments, "--fail-on", "critical", "--json", code=3)
    assert said["verdict"] == json.loads(out.read_text())["verdict"] == "critical"


BAD = {
    "a word": ("yesterday", "'yesterday' names no data"),
    "no file": ("none.json", "there is no file none.json"),
    "no profile": ("suite.json", "suite.json is not a profile"),
    "a newer profile": ("newer.json", "newer.json: This Profile has schema 2, newer than the 1"),
    "a model": ("other@champion", "There is no other@champion"),
    "no dataset": (f"datasets/{'a' * 40}-0", "is not in "),
    "no name": ("datasets/../x", "cannot be a path in a store"),
}


@pytest.mark.parametrize(("against", "sentence"), BAD.values(), ids=BAD)
def test_earlier_data_that_is_not_there_is_one_sentence(against: str, sentence: str, spec: Path) -> None:
    (spec.parent / "newer.json").write_text(json.dumps({"schema_version": 2, "rows": 0, "columns": []}))
    with pytest.raises(TrainwrightError, match=sentence) as raised:
        run_of(spec, f"contract.drift.against={against}")
    assert raised.value.exit_code == 2


def test_a_deleted_reference_is_one_sentence_and_nothing_is_sealed(spec: Path) -> None:
    run = run_of(spec)
    report = validate(run)
    assert run.store.remove(report.ref.uri, why="old", by="a test")
    with pytest.raises(UsageError, match=r"contracts/.*-0 was deleted\."):
        run_of(spec, f"contract.drift.against={report.ref.uri}")
    assert run.store.list("contracts") == []


MILD = Failure(expectation="e", column="a", severity="warning", rows=1, sentence="a: odd")


@pytest.mark.parametrize(
    ("failures", "expectations", "fail_on", "alone"),
    [
        ([], 1, "critical", True),
        ([MILD], 1, "critical", True),
        ([MILD.model_copy(update={"severity": "critical"})], 1, "critical", False),
        ([], 1, "never", False),
        ([], 0, "critical", False),
    ],
)
def test_only_what_drift_alone_rejects_may_start_a_retraining(
    failures: list[Failure], expectations: int, fail_on: str, alone: bool
) -> None:
    moved = ColumnDrift(column="c", verdict="critical", p=0, nulls=(0, 0), sentence="c moved")
    report = ContractReport(key="k", accepted=False, rows=1, expectations=expectations, failures=failures,
                            suite_digest="", drift=DriftReport(against="x", columns=[moved]))  # fmt: skip
    run = make_run(spec={**SPEC, "contract": {"suite": {}, "drift": {"fail_on": fail_on}}})
    assert drift_alone_rejects(run, report) is alone


def test_the_spec_of_a_retraining_accepts_the_data_and_deploy_refuses_it(spec: Path) -> None:
    asked = ["contract.drift.retrain=true", "contract.drift.fail_on=critical"]
    started = load_spec(spec, [*asked, ACCEPTS])  # as the automation's run loads it
    _refuse_never(load_spec(spec, asked))
    with pytest.raises(SpecError, match=r"contract.drift.retrain: a retraining starts when .* fail_on is never\."):
        _refuse_never(started)
