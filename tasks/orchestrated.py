"""The stages as Prefect tasks: a name, a policy and an artifact around the plain function, nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.states import Cancelled as PrefectCancelled
from prefect.states import Completed, Failed, State

from data_contracts.errors import GateNotMet, TrainwrightError
from infra.orchestrator.artifacts import ProgressArtifact, stage_artifact
from tasks import evaluate as _evaluate
from tasks import pages
from tasks import promote as _promote
from tasks import shard as _shard
from tasks import train as _train
from tasks import validate as _validate
from tasks import verify as _verify
from tasks.policies import task_policy
from tasks.progress import listening, percent, sentence
from tasks.run import Run


def as_task(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a stage: Prefect sees its name, its tags and how it ended; people see a page, verdict first."""

    @task(**task_policy(name))
    @functools.wraps(work)
    def stage_task(run: Run, *args: Any) -> State:
        bar = ProgressArtifact(pages.artifact_key(run, f"{name}-progress"))

        def hear(record: dict[str, Any]) -> None:
            if "gang" in record:
                stage_artifact(pages.artifact_key(run, "gang"), pages.gang_page(record["gang"]), "gang")
            else:
                bar.show(percent(record), sentence(record))

        answer: dict[str, Any]
        try:
            with listening(hear):
                answer = {"handoff": work(run, *args)}
        except TrainwrightError as error:
            answer = {"error": error}
        stage_artifact(pages.artifact_key(run, name), pages.stage_page(run, name, **answer), name)
        return _as_state(run, name, **answer)

    @functools.wraps(work)
    def stage_or_raise(run: Run, *args: Any) -> Any:
        ended = stage_task(run, *args, return_state=True).result(raise_on_failure=False)
        if isinstance(ended, BaseException):
            raise ended
        return ended

    return stage_or_raise


def _as_state(run: Run, stage: str, handoff: Any = None, error: TrainwrightError | None = None) -> State:
    """The task run's last state: its name is the stage's status, so that a list of runs tells what happened."""
    result = run.results[stage]
    if isinstance(error, GateNotMet):
        return Completed(name="NotPromoted", message=result.sentence, data=error)
    if error is not None:
        make = PrefectCancelled if result.status == "cancelled" else Failed
        return make(name=result.status.capitalize(), message=result.sentence, data=error)
    name = "Completed" if result.status == "ran" else result.status.capitalize()
    return Completed(name=name, message=result.sentence, data=handoff)


validate = as_task("validate", _validate.validate)
shard = as_task("shard", _shard.shard)
train = as_task("train", _train.train)
verify = as_task("verify", _verify.verify)
evaluate = as_task("evaluate", _evaluate.evaluate)
promote = as_task("promote", _promote.promote)
