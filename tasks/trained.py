"""What a checkpoint was trained with, as its generation was told: settings, code and dataset.

The champion may come from other code and another architecture than this run's; it is always rebuilt from its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_contracts.handoffs import Checkpoint, Dataset, Ref
from infra.store import layout
from tasks.run import Run


@dataclass(frozen=True)
class TrainedWith:
    """Train settings with the Lightning config inlined, the code bundle, and the dataset (None: external)."""

    train: dict[str, Any]
    code: Ref
    dataset: Dataset | None


def trained_with(run: Run, checkpoint: Checkpoint) -> TrainedWith:
    """Read what the checkpoint's generation was told at its launch."""
    launch = run.store.read_json(layout.launch(checkpoint.training, checkpoint.generation))
    dataset = None if launch["dataset"] is None else Dataset.from_json(launch["dataset"])
    return TrainedWith(launch["train"], Ref.model_validate(launch["code"]), dataset)
