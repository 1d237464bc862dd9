"""What a checkpoint was trained with, as it is sealed beside its weights: settings, code and dataset.

The champion may come from other code and another architecture than this run's; it is always rebuilt from its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Ref
from infra.checkpoints import TRAIN, check_told, read_trained_with
from infra.store import layout
from tasks.run import Run
from tasks.train import VERSION, key_of


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
    """Read what is sealed in the checkpoint; CorruptError if it is changed, gone, or not what its training is for."""
    try:
        manifest = run.store.manifest(checkpoint.ref)
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {checkpoint.ref.uri} is gone.") from error
    check_told(manifest, checkpoint)
    sealed = read_trained_with(run.store, manifest)
    try:
        parents = [Ref.model_validate(parent) for parent in manifest.provenance["parents"]]
        code = Ref.model_validate(manifest.provenance["code"]["ref"])
        keys = {key_of(sealed, version) for version in range(1, VERSION + 1)}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{checkpoint.ref.uri} does not say what it was trained with.") from error
    # The training's place is named by the digest of these settings: other ones, such as another class, give another.
    if split_key(checkpoint.training) not in keys:
        raise CorruptError(
            f"{checkpoint.ref.uri}/{TRAIN} holds other settings than {checkpoint.training} was made for."
        )
    dataset = next((parent for parent in parents if parent.id == sealed["dataset_id"]), None)
    return TrainedWith(sealed, code, dataset)


def split_key(training: str) -> str:
    """The reuse key in a training's directory."""
    found = layout.split_attempt(training.removeprefix("trainings/"))
    return found[0] if found else ""
