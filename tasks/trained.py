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
    """Settings with the Lightning config inlined, the code and its digest in keys, the dataset (None: external)."""

    train: dict[str, Any]
    code: Ref
    code_digest: str
    dataset: Dataset | None


def trained_with(run: Run, checkpoint: Checkpoint) -> TrainedWith:
    """Read what the checkpoint's generation was told at its launch."""
    launch = run.store.read_json(layout.launch(checkpoint.training, checkpoint.generation))
    dataset = None if launch["dataset"] is None else Dataset.from_json(launch["dataset"])
    code = Ref.model_validate(launch["code"])
    return TrainedWith(launch["train"], code, launch["code_digest"], dataset)
