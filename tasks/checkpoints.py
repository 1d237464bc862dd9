"""The checkpoints of a run's training, found by what the run itself recorded; nothing is trained, moved or verified."""

from __future__ import annotations

from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from infra.datasets import find_dataset_by_id
from infra.launch.shelf import Found, committed, list_checkpoints, why_from
from infra.launch.trail import at_step
from infra.store import Store, layout
from tasks.run import Run
from tasks.train import training_key


def checkpoints_of(run: Run) -> tuple[str, list[Found]]:
    """The run's training and its checkpoints, oldest first; UsageError if it has not begun to train."""
    training = training_of(run)
    if training is None:
        raise UsageError(
            f"The run {run.run_id} has not begun to train.", remedy=f"Go on with `trainwright resume {run.run_id}`."
        )
    return training, list_checkpoints(run.store, training)


def training_of(run: Run) -> str | None:
    """The training that the run reused, else the newest of its key that it launched, else the newest of its key."""
    reused = (recorded(run, "train") or {}).get("reused_from")
    if reused:
        return str(reused)
    made = None if run.external else (recorded(run, "shard") or {}).get("id")
    dataset: Dataset | None = None if made is None else find_dataset_by_id(run.store, made)
    if dataset is None and not run.external:
        return None
    key, attempts = training_key(run, dataset), list[str]()
    while run.store.list(training := layout.attempt("trainings", key, len(attempts))):
        attempts.insert(0, training)
    launched = [training for training in attempts if run.run_id in _launched_by(run.store, training)]
    # `--new` asks for a training of its own.
    return next(iter(launched if run.resolved.fresh else [*launched, *attempts]), None)


def going_on(store: Store, training: str, from_step: int | None) -> str:
    """Where an unfinished training would go on, and why; UsageError for a step that is not committed."""
    kept, aside = committed(store, training)
    if from_step is not None:
        later = [one.step for one in kept if one.step > at_step(kept, from_step, training).step]
        beyond = f"; step {', '.join(f'{step:,}' for step in later)} will be set aside" if later else ""
        return f"goes on from step {from_step:,}, as asked{beyond}"
    if not kept:
        return "begins anew: it has no committed checkpoint"
    return f"goes on from step {kept[-1].step:,} ({why_from(store, training, kept[-1].step, aside)})"


def _launched_by(store: Store, training: str) -> set[str]:
    """The runs that launched a generation of a training."""
    numbers = [int(name[1:]) for name in store.list(training) if name[:1] == "g" and name[1:].isdigit()]
    launches = [layout.launch(training, number) for number in numbers]
    return {store.read_json(path)["provenance"]["run_id"] for path in launches if store.exists(path)}


def recorded(run: Run, stage: str) -> dict[str, Any] | None:
    """How a stage of the run ended, if it ended well."""
    path = layout.stage(run.run_id, stage)
    return run.store.read_json(path) if run.store.exists(path) else None
