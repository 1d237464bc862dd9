"""A stage as a Prefect task: adds a name, a policy and an artifact, nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from prefect import task
from prefect.states import Cancelled as PrefectCancelled
from prefect.states import Completed, Failed, State
from prefect.utilities.annotations import opaque

from data_contracts.errors import (
    ApprovalPending,
    ContractRejected,
    GateNotMet,
    StorageUnavailable,
    TrainwrightError,
)
from data_contracts.handoffs import ContractReport
from data_contracts.messages.raw_data import ShardProgress
from infra.orchestrator.artifacts import ProgressArtifact, stage_artifact
from infra.orchestrator.events import announce_drift
from infra.orchestrator.flow_runs import begin_with_server, wait_for_server
from tasks.policies import task_policy
from tasks.run.progress import GangChanged, TrainingProgress, listening, percent, sentence
from tasks.run.run import Run, artifact_key
from tasks.stages import artifacts
from tasks.stages.contract_check import drift_alone_rejects
from tasks.stages.stage import Stage

P = ParamSpec("P")
T = TypeVar("T")


def as_task(stage: Stage[P, T]) -> Callable[Concatenate[Run, P], T]:
    """Wrap a stage: Prefect gets its name, its tags and its final state; people get a page, verdict first."""
    name = stage.name
    work = cast("Callable[..., T]", stage)
    answers: list[TrainwrightError | None] = []

    def stage_task(run: Run, *args: Any) -> State:
        bar = ProgressArtifact(artifact_key(run, f"{name}-progress"))

        def on_event(event: Any) -> None:
            match event:
                case GangChanged(statuses):
                    stage_artifact(artifact_key(run, "gang"), artifacts.gang_page(statuses), "gang")
                case ShardProgress() | TrainingProgress() if (done := percent(event)) is not None:
                    bar.show(done, sentence(event))

        handoff: T | None = None
        error: TrainwrightError | None = None
        try:
            with listening(on_event):
                handoff = work(run, *args)
            bar.end(run.live.results[name].sentence)
        except TrainwrightError as raised:
            handoff, error = None, raised
        page = artifact_key(run, name), artifacts.stage_page(run, name, handoff=handoff, error=error), name
        if not stage_artifact(*page):
            # Prefect would lose the page, the event and the task's state. The next stage says that it was in vain.
            with contextlib.suppress(StorageUnavailable):
                wait_for_server(run.spec.retry.server_wait_s)
                stage_artifact(*page)
        _announce_drift(run, handoff, error)
        answers.append(error)
        return _as_state(run, name, handoff, error)

    # Prefect tells tasks apart by the function's name.
    stage_task.__name__ = stage_task.__qualname__ = name
    in_prefect = task(**task_policy(name))(stage_task)

    def stage_or_raise(run: Run, *args: Any) -> Any:
        def in_engine() -> Any:
            # Otherwise Prefect would search all of the run for results of other tasks. It recognises a hand-off as the
            # result of the task that returned it, so the graph of the flow run has its edges.
            return in_prefect(opaque(run), *map(opaque, args), return_state=True).result(raise_on_failure=False)

        ended = begin_with_server(in_engine, lambda: bool(answers), run.spec.retry.server_wait_s)
        if isinstance(ended, BaseException):
            raise ended
        return ended

    return cast("Callable[Concatenate[Run, P], T]", stage_or_raise)


def _announce_drift(run: Run, handoff: object, error: TrainwrightError | None) -> None:
    """Tell Prefect's automations if validate found that the data has drifted."""
    report = handoff if isinstance(handoff, ContractReport) else None
    if isinstance(error, ContractRejected) and error.details.get("drift"):
        report = ContractReport.model_validate(error.details)
    if report is not None and report.drift is not None and report.drift.moved:
        alone = drift_alone_rejects(run, report)
        announce_drift(run.spec.name, run.run_id, report.drift, rejected=alone)


def _as_state(run: Run, stage: str, handoff: object, error: TrainwrightError | None) -> State:
    """The task run's final state: its name is the stage's status, so that a list of runs shows what happened."""
    result = run.live.results[stage]
    if isinstance(error, ApprovalPending):
        return Completed(name="Waiting", message=result.sentence, data=error)
    if isinstance(error, GateNotMet):
        return Completed(name="NotPromoted", message=result.sentence, data=error)
    if error is not None:
        make = PrefectCancelled if result.status == "cancelled" else Failed
        return make(name=result.status.capitalize(), message=result.sentence, data=error)
    name = "Completed" if result.status == "ran" else result.status.capitalize()
    return Completed(name=name, message=result.sentence, data=handoff)
