"""The checkpoints of a run's training, found by the run's own records; nothing is trained, moved or verified."""

from __future__ import annotations

from infra.gang.ledger import Found, list_checkpoints
from tasks.run.run import Run
from tasks.stages.trainings import begun_training


def checkpoints_of(run: Run) -> tuple[str, list[Found]]:
    """The run's training and its checkpoints, oldest first; UsageError if it has not started training."""
    training = begun_training(run)
    return training, list_checkpoints(run.store, training)
