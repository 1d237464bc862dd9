"""What a page about a run shows, read from the store. A part that cannot be read is missing; it ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Any, TypeVar

from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, Receipt, Ref
from data_contracts.records import GateResult
from data_contracts.run_report import RunReport, StageResult
from infra.gang.ledger import GenerationSpan, committed, generation_spans
from infra.records.handoffs import find_dataset_by_id, read_handoff
from infra.store import Store, layout
from infra.store.seal import pass_over
from tasks.pages.rows import Pairs, read_pairs
from tasks.queries.history import logged_metrics
from tasks.run.report import latest_report
from tasks.run.run import Run
from tasks.stages.artifacts import gates_in, own_report, receipt_of
from tasks.stages.evaluate import evaluation_key
from tasks.stages.shard import sets_to_score
from tasks.stages.trainings import training_of

log = logging.getLogger("trainwright")
T = TypeVar("T")
# How many evaluations are looked at for one that its key does not find.
_SCANNED = 200


@dataclass(frozen=True)
class Facts:
    """A run, its report (None while it runs) and what it made or reused.

    Attributes:
        stages: how the stages ended, in order.
        training: its directory in the store.
        spans: what the generations of its training did.
        history: what the training logged.
    """

    run: Run
    report: RunReport | None
    stages: list[StageResult] = field(default_factory=list)
    contract: ContractReport | None = None
    dataset: Dataset | None = None
    training: str | None = None
    checkpoint: Checkpoint | None = None
    evaluation: Evaluation | None = None
    receipt: Receipt | None = None
    spans: Sequence[GenerationSpan] = ()
    history: Sequence[Mapping[str, Any]] = ()

    @property
    def gates(self) -> list[GateResult]:
        """What the gates found: from the receipt, or from the error that refused the candidate."""
        report = self.report
        return [] if report is None else tried(lambda: gates_in(report, self.receipt)) or []

    @property
    def own_spans(self) -> list[GenerationSpan]:
        """The generations that this run launched; another run may have begun the training, or continued it."""
        return [one for one in self.spans if one.run_id == self.run.run_id]

    @property
    def restarts(self) -> int:
        """How often this run launched the training again."""
        return max(len(self.own_spans) - 1, 0)

    @property
    def main_metric(self) -> str:
        """The metric that the first gate is about, else the first; "" if nothing was evaluated."""
        metrics = self.evaluation.metrics if self.evaluation is not None else {}
        named = [one.metric for one in self.gates] + [gate.name for gate in self.run.spec.promote.gates]
        return next((name for name in [*named, *metrics] if name in metrics), "")

    @cached_property
    def pairs(self) -> Pairs | None:
        """Truth and prediction of each row; None if they are not kept, or withheld as those of sensitive columns."""
        evaluation = self.evaluation
        if evaluation is None or self.run.withholds:
            return None
        return tried(lambda: read_pairs(self.run.store, evaluation, self.main_metric))

    def stage(self, name: str) -> StageResult | None:
        """How a stage ended; None if the run did not get so far."""
        return next((one for one in self.stages if one.name == name), None)


def gather(run: Run, report: RunReport | None, made: Mapping[str, Any] | None = None) -> Facts:
    """The facts about a run.

    Args:
        made: hand-offs that are known already: `dataset`, `checkpoint`, `evaluation` and `receipt`.
    """
    given = {name: one for name, one in (made or {}).items() if one is not None}
    stages = _stages(run, report)
    ids = {one.name: one.id for one in stages}
    checkpoint: Checkpoint | None = given.get("checkpoint")
    training = checkpoint.training if checkpoint is not None else tried(lambda: training_of(run))
    if checkpoint is None and training is not None and "train" in ids:
        checkpoint = tried(lambda: run.store.find_as(layout.result(training), Checkpoint.from_json))
    dataset: Dataset | None = given.get("dataset")
    wanted = ids.get("shard")
    if dataset is None and wanted:
        dataset = tried(lambda: find_dataset_by_id(run.store, wanted))
    receipt: Receipt | None = given.get("receipt") or (
        None if report is None else tried(lambda: receipt_of(run, report))
    )
    evaluation: Evaluation | None = given.get("evaluation")
    if evaluation is None and checkpoint is not None and "evaluate" in ids:
        parts = (checkpoint, dataset, receipt, ids["evaluate"])
        evaluation = tried(lambda: _evaluation(run, *parts))
    return Facts(
        run=run,
        report=report,
        stages=stages,
        contract=tried(lambda: own_report(run)) or _rejection(report),
        dataset=dataset,
        training=training,
        checkpoint=checkpoint,
        evaluation=evaluation,
        receipt=receipt,
        spans=() if training is None else tried(lambda: generation_spans(run.store, training)) or (),
        history=tried(lambda: _history(run.store, checkpoint, training)) or (),
    )


def facts_of(run: Run) -> Facts:
    """The facts about a run from the store alone."""
    return gather(run, latest_report(run.store, run.run_id))


def tried(read: Callable[[], T]) -> T | None:
    """What `read` returns; None if it raises, which a page must survive."""
    try:
        return read()
    except TrainwrightError as error:
        if isinstance(error, CorruptError) or "file" in error.details:
            pass_over(error)
        return None
    except Exception as error:  # of a store of any age and state; the text may quote a value
        log.debug("A part of a page could not be read: %s", type(error).__name__)
        return None


def seconds_between(started: str, finished: str) -> float | None:
    """Seconds between two times in ISO 8601; None if one is not known."""
    found = tried(lambda: (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())
    return found if found is not None and found >= 0 else None


def _stages(run: Run, report: RunReport | None) -> list[StageResult]:
    if report is not None:
        return list(report.stages)
    names = run.store.list(f"{layout.run(run.run_id)}/stages")
    found = [tried(partial(_stage, run, name)) for name in names]
    order = ["validate", "shard", "train", "verify", "evaluate", "promote"]
    return sorted((one for one in found if one), key=lambda one: order.index(one.name) if one.name in order else 99)


def _history(store: Store, checkpoint: Checkpoint | None, training: str | None) -> Sequence[Mapping[str, Any]]:
    """What was logged up to the checkpoint that was handed over, or up to the newest of a training that is not done."""
    if checkpoint is None and training is not None:
        kept, _ = committed(store, training)
        checkpoint = kept[-1] if kept else None
    return () if checkpoint is None else logged_metrics(store, checkpoint)


def _stage(run: Run, file: str) -> StageResult:
    return run.store.read_as(layout.stage(run.run_id, file.removesuffix(".json")), StageResult.model_validate)


def _rejection(report: RunReport | None) -> ContractReport | None:
    details = ((report.error if report is not None else None) or {}).get("details", {})
    return tried(lambda: ContractReport.model_validate(details)) if "suite_digest" in details else None


def _evaluation(
    run: Run, checkpoint: Checkpoint, dataset: Dataset | None, receipt: Receipt | None, wanted: str | None
) -> Evaluation | None:
    """The evaluation that the receipt names, else the one with the id in the stage's record."""
    store = run.store
    if receipt is not None and receipt.evaluation is not None:
        return read_handoff(store, receipt.evaluation, Evaluation)
    key = tried(lambda: evaluation_key(run, checkpoint, sets_to_score(run, dataset)))
    names = store.list("evaluations")
    first = [name for name in names if key is not None and name.startswith(f"{key}-")]
    for name in [*reversed(first), *reversed(names[-_SCANNED:])]:
        ref = tried(partial(_ref, store, f"evaluations/{name}"))
        if ref is not None and ref.id == wanted:
            return read_handoff(store, ref, Evaluation)
    return None


def _ref(store: Store, uri: str) -> Ref:
    return store.manifest(uri).ref
