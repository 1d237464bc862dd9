"""What a checkpoint was trained with, as sealed beside its weights: settings, code and dataset.

The champion may have other code and another architecture than this run; it is always rebuilt from its own settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Ref
from infra.code_bundle import check_bundle
from infra.records.handoffs import TRAIN, check_against_seal, read_trained_with
from infra.store import Store, layout
from tasks.stages.trainings import VERSION, key_of


@dataclass(frozen=True)
class TrainedWith:
    """Settings that decide a training's result (the Lightning config inlined), the code, the dataset (None: external).

    Attributes:
        sealed: all content of `train.json`, which the checkpoint's id covers and which keys contain.
    """

    sealed: dict[str, Any]
    code: Ref
    dataset: Ref | None

    @property
    def train(self) -> dict[str, Any]:
        """`train` as JSON, without the settings that do not affect the result."""
        return self.sealed["train"]


class HasStore(Protocol):
    """A run, or another object that knows the store of a checkpoint."""

    @property
    def store(self) -> Store:
        """The store."""


@dataclass(frozen=True)
class InStore:
    """Where a checkpoint lies, without a run."""

    store: Store


def trained_with(run: HasStore, checkpoint: Checkpoint) -> TrainedWith:
    """Read what is sealed in the checkpoint; CorruptError if it is changed, gone, or not of its training."""
    try:
        manifest = run.store.manifest(checkpoint.ref)
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {checkpoint.ref.uri} is missing.") from error
    check_against_seal(manifest, checkpoint)
    sealed = read_trained_with(run.store, manifest)
    try:
        parents = [Ref.model_validate(parent) for parent in manifest.provenance["parents"]]
        code = Ref.model_validate(manifest.provenance["code"]["ref"])
        keys = {key_of(sealed, version) for version in range(1, VERSION + 1)}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{checkpoint.ref.uri} does not say what it was trained with.") from error
    # The digest of these settings names the training's directory: other settings, such as another class, give another
    # name.
    if split_key(checkpoint.training) not in keys:
        raise CorruptError(
            f"{checkpoint.ref.uri}/{TRAIN} holds other settings than {checkpoint.training} was made for."
        )
    _check_code(run, code, sealed)
    dataset = next((parent for parent in parents if parent.id == sealed["dataset_id"]), None)
    return TrainedWith(sealed, code, dataset)


def _check_code(run: HasStore, code: Ref, sealed: dict[str, Any]) -> None:
    """CorruptError unless a checkpoint's bundle has the code that its settings were sealed with."""
    try:
        check_bundle(run.store, run.store.manifest(code), sealed["code_digest"])
    except FileNotFoundError as error:
        raise CorruptError(f"{code.uri}, the code that a checkpoint was trained with, is missing.") from error


def split_key(training: str) -> str:
    """The reuse key in a training's directory."""
    parts = layout.split_attempt(training.removeprefix("trainings/"))
    return parts[0] if parts else ""
