"""The checkpoints of a run's training, found by the run's own records; nothing is trained, moved or verified."""

from __future__ import annotations

from data_contracts.errors import UsageError
from infra.gang.checkpoints.listing import Found, list_checkpoints
from tasks.run.run import Run
from tasks.stages.trainings import training_of


def checkpoints_of(run: Run) -> tuple[str, list[Found]]:
    """The run's training and its checkpoints, oldest first; UsageError if it has not started training."""
    training = training_of(run)
    if training is None:
        raise UsageError(
            f"The run {run.run_id} has not started training.",
            remedy=f"Continue it with `trainwright resume {run.run_id}`.",
        )
    return training, list_checkpoints(run.store, training)
