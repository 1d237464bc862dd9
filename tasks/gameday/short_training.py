"""A short training of a pipeline, with a fault or without, in the store of a game day."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import GameTraining
from data_contracts.pipeline_spec.base import run_locally
from tasks.gameday.faults import EVERY_STEPS, STEPS
from tasks.run.resolve import RunOptions
from tasks.run.run import open_run
from tasks.stages.shard import shard
from tasks.stages.train import run_training, train
from tasks.stages.validate import validate

# What a pipeline's game day is called, in Prefect and in every manifest.
SUFFIX, TAG = "-gameday", "gameday"
# Fields of the Lightning trainer that say how long a training lasts.
_LENGTH = ("max_epochs", "max_steps", "min_epochs", "min_steps", "max_time")


def own_overrides(name: str) -> list[str]:
    """The fields of the spec that a game day replaces, so that it is known for one and lasts minutes."""
    return [
        f"name={name[: 63 - len(SUFFIX)]}{SUFFIX}",
        f"tags.{TAG}='true'",
        f"train.checkpoint={{every_steps: {EVERY_STEPS}}}",
        "train.select=null",
    ]


def shortened(lightning: dict[str, Any]) -> dict[str, Any]:
    """The Lightning config of a training of STEPS steps."""
    trainer = {field: value for field, value in (lightning.get("trainer") or {}).items() if field not in _LENGTH}
    return {**lightning, "trainer": {**trainer, "max_steps": STEPS, "max_epochs": -1}}


def train_once(wanted: GameTraining) -> Checkpoint:
    """Validate, shard and train in the store of a game day; nothing is verified, evaluated or promoted.

    Raises: what ended the training, once its retry budget is spent.
    """
    options = RunOptions(window=wanted.window, fresh=wanted.fresh)
    run = open_run(
        wanted.spec,
        overrides=wanted.overrides,
        store_uri=wanted.store,
        options=options,
        recorded=False,
        remembered=False,
    )
    # What conducts a game day is no flow run of Prefect's tasks, which a Dask cluster would need.
    changes = {"lightning": shortened(run.resolved.lightning), "spec": run_locally(run.resolved.spec)}
    run = replace(run, resolved=run.resolved.model_copy(update=changes))
    stage = replace(train, make=partial(run_training, fault=wanted.fault))
    return stage(run, shard(run, validate(run)))
