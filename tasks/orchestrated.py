"""The stages as Prefect tasks: a name, a policy and an artifact around the plain function, nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from prefect import task

from data_contracts.errors import TrainwrightError
from infra.orchestrator.artifacts import stage_artifact
from tasks import evaluate as _evaluate
from tasks import pages
from tasks import promote as _promote
from tasks import shard as _shard
from tasks import train as _train
from tasks import validate as _validate
from tasks import verify as _verify
from tasks.policies import task_policy
from tasks.run import Run


def as_task(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a stage: Prefect sees its name, its tags and how it ended; people see a page, verdict first."""

    @task(**task_policy(name))
    @functools.wraps(work)
    def stage_task(run: Run, *args: Any) -> Any:
        try:
            handoff = work(run, *args)
        except TrainwrightError as error:
            stage_artifact(pages.artifact_key(run, name), pages.stage_page(run, name, error=error), name)
            raise
        stage_artifact(pages.artifact_key(run, name), pages.stage_page(run, name, handoff=handoff), name)
        return handoff

    return stage_task


validate = as_task("validate", _validate.validate)
shard = as_task("shard", _shard.shard)
train = as_task("train", _train.train)
verify = as_task("verify", _verify.verify)
evaluate = as_task("evaluate", _evaluate.evaluate)
promote = as_task("promote", _promote.promote)
