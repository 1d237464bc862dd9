"""What a checkpoint was trained with, as it is sealed beside its weights: settings, code and dataset.

The champion may come from other code and another architecture than this run's; it is always rebuilt from its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Ref
from tasks.run import Run

FILE = "train.json"


@dataclass(frozen=True)
class TrainedWith:
    """Settings that decide a training's result (the Lightning config inlined), the code, the dataset (None: external).

    Attributes:
        sealed: all that `train.json` says, of which the checkpoint's id is made: what keys contain.
    """

    sealed: dict[str, Any]
    code: Ref
    dataset: Ref | None

    @property
    def train(self) -> dict[str, Any]:
        """`train` as JSON, without what decides nothing."""
        return self.sealed["train"]


def trained_with(run: Run, checkpoint: Checkpoint) -> TrainedWith:
    """Read what is sealed in the checkpoint; CorruptError if it is changed or gone."""
    try:
        manifest = run.store.manifest(checkpoint.ref)
        data = run.store.read(f"{checkpoint.ref.uri}/{FILE}")
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {checkpoint.ref.uri} is gone, or has no {FILE}.") from error
    if blake3(data).hexdigest() not in {file.blake3 for file in manifest.files if file.path == FILE}:
        raise CorruptError(f"{checkpoint.ref.uri}/{FILE} is not what was sealed.")
    sealed = json.loads(data)
    parents = [Ref.model_validate(parent) for parent in manifest.provenance["parents"]]
    dataset = next((parent for parent in parents if parent.id == sealed["dataset_id"]), None)
    return TrainedWith(sealed, Ref.model_validate(manifest.provenance["code"]["ref"]), dataset)
