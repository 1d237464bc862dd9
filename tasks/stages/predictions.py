"""The contract on a candidate's predictions of each evaluation set: what is checked, and under which key.

The tables that the evaluator sealed are read, so a changed suite scores nothing again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from data_contracts.canonical import reuse_key
from data_contracts.contract.suites import suite_digest
from data_contracts.errors import ContractRejected, InsufficientEvidence, UsageError
from data_contracts.handoffs import ContractReport, Evaluation, SourceFile
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.pipeline_spec import SourceSpec, SuiteSpec
from infra.records.handoffs import newest_handoff
from tasks.run.run import Run
from tasks.run.spec_check import PREDICTIONS, suite_called
from tasks.stages.contract.contract_check import checked, code_of
from tasks.stages.stage import StageOutcome
from tasks.stages.validate import accepted, rejection

PREDICTIONS_VERSION = 1
PREDICTIONS_FIELD = "contract.predictions"
PREDICTIONS_REMEDY = "Correct the suite: the predictions have no such column."


def asked_of(run: Run) -> SuiteSpec | None:
    """What the spec asks of predictions; None if it asks nothing."""
    return None if run.spec.contract is None else run.spec.contract.predictions


def predictions_key(run: Run, evaluation: Evaluation, set_name: str) -> str:
    """Reuse key of a set's report: the suite, what it fails on, whether values are masked, and the evaluation."""
    asked = asked_of(run)
    assert asked is not None
    assert run.resolved.predictions is not None
    settings = {
        "suite": suite_digest(run.resolved.predictions),
        "fail_on": asked.fail_on,
        "masked": run.withholds,
        "set": set_name,
    }
    return reuse_key(
        "predictions", PREDICTIONS_VERSION, settings, [evaluation.ref.id], code_of(run, run.resolved.predictions)
    )


def predictions_report(run: Run, evaluation: Evaluation, set_name: str) -> ContractReport | None:
    """The report on a set's predictions, accepted or not; None if there is none yet."""
    return newest_handoff(run.store, "contracts", predictions_key(run, evaluation, set_name), ContractReport)


def predictions_request(run: Run, evaluation: Evaluation, set_name: str) -> ContractRequest:
    """The check of the table of a set's predictions."""
    asked, table = asked_of(run), evaluation.predictions[set_name]
    assert asked is not None
    assert run.resolved.predictions is not None
    path = run.store.local(evaluation.ref) / table.file
    [entry] = [one for one in run.store.manifest(evaluation.ref).files if one.path == table.file]
    return ContractRequest(
        suite=run.resolved.predictions,
        files=[SourceFile(uri=str(path), bytes=entry.bytes, blake3=entry.blake3, format="parquet")],
        sources=[SourceSpec(uri=str(path.parent))],
        root=run.resolved.root,
        window=None,
        window_column=None,
        fail_on=asked.fail_on,
        # A model may give back values that it was trained on, whatever its columns are called.
        sensitive=table.columns if run.withholds else [],
        may_lack_sensitive=True,
        profile=False,
    )


def with_predictions(
    run: Run, evaluation: Evaluation, done: StageOutcome[Evaluation], *, make: bool
) -> StageOutcome[Evaluation]:
    """The stage's answer after the predictions of each set were checked, if the spec asks for it."""
    asked = asked_of(run)
    for name, table in evaluation.predictions.items() if asked is not None else ():
        assert asked is not None
        place = f"{PREDICTIONS_FIELD} on evaluate.sets.{name}" if name else PREDICTIONS_FIELD
        if table.missing:
            remedy = "Let predict_step return one value or one list of values for each row, or leave the contract out."
            return replace(done, error=UsageError(f"{place}: {table.missing}.", remedy=remedy))
        report = predictions_report(run, evaluation, name)
        if report is None:
            if not make:
                return replace(done, lacks=f"the predictions are not checked against {place} yet")
            with suite_called(PREDICTIONS, run.spec, Path(run.resolved.root)):
                request = predictions_request(run, evaluation, name)
                key = predictions_key(run, evaluation, name)
                report = checked(run, key, request, run.provenance(evaluation.ref))
            done = replace(done, status="ran", reused_from=None)
        assert report.ref is not None
        if not report.accepted:
            sentence = f"{place}: {rejection(report, asked.fail_on, 'predictions')}"
            lacking = any(one.column and one.column not in table.columns for one in report.failures)
            remedy = (
                PREDICTIONS_REMEDY
                if lacking
                else f"Look at the model and at these rows in {table.file} of the evaluation."
            )
            error = ContractRejected(sentence, remedy=remedy, details=report.to_json())
            return replace(done, sentence=sentence, in_plan=f"{report.ref.uri}: {sentence}", error=error)
        done = replace(done, sentence=f"{done.sentence}; {place}: {accepted(report)}")
    return done if not evaluation.undecided else replace(done, error=undecided(evaluation))


def undecided(evaluation: Evaluation) -> InsufficientEvidence:
    """The error for an evaluation of which a metric has no value."""
    return InsufficientEvidence(evaluation.undecided, remedy="Look at the model's weights and the rows of the set.")
