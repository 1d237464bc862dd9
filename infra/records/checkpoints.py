"""Check a checkpoint against its reference: both must be of the same place, training and step.

Anyone who can write to a store can seal anything. But a checkpoint that is passed off as one of another step or another
training is detected here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Ref
from infra.share import WHOLE, Share
from infra.store import Manifest, Store, layout

KIND = "checkpoint"
TRAIN = "train.json"
# How the names of the files of the module's tensors begin; `training.checkpoint.capture` writes them.
WEIGHT_FILES = "weights-"
# What torch.compile puts into the names of a module that it wraps.
_COMPILED = "_orig_mod."
# No file type that anyone could unpickle.
_FILE = re.compile(r"[a-z0-9-]+\.(json|safetensors)")


def plain_name(name: str) -> str:
    """A tensor's name as it is where no part of the module is compiled."""
    return name.replace(_COMPILED, "")


def verify_checkpoint(
    store: Store, checkpoint: Checkpoint, on_file: Callable[[], None] = lambda: None, share: Share = WHOLE
) -> Manifest:
    """Read every byte of a checkpoint again; CorruptError if it is changed, or is not the one that was named.

    FileNotFoundError if it does not exist.

    Args:
        on_file, share: as in `Store.verify`.
    """
    manifest = store.verify(checkpoint.ref, on_file, share)
    check_against_seal(manifest, checkpoint)
    return manifest


def is_verified(store: Store, checkpoint: Ref) -> bool:
    """Whether the verify stage passed for this checkpoint; CorruptError for a damaged or foreign mark."""
    mark = layout.verified(checkpoint.uri)
    if not store.exists(mark):
        return False
    if store.read_as(mark, lambda value: Ref.model_validate(value["checkpoint"])) != checkpoint:
        raise CorruptError(
            f"{checkpoint.uri} is not the checkpoint that was verified: {mark} marks another checkpoint "
            "than the one that is stored there.",
            details={"file": mark},
        )
    return True


def check_against_seal(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """CorruptError if a sealed directory is not the checkpoint that a pointer or a hand-off describes."""
    path = layout.manifest(manifest.uri)
    if manifest.kind != KIND:
        raise CorruptError(f"{path} is a {manifest.kind}, not a checkpoint.", details={"file": path})
    for file in manifest.files:
        if not _FILE.fullmatch(file.path):
            raise CorruptError(f"{manifest.uri} holds {file.path!r}, which is not a file of a checkpoint.")
    place = layout.checkpoint(checkpoint.training, checkpoint.step, checkpoint.generation)
    described = {"step": checkpoint.step, "epoch": checkpoint.epoch, "world_size": checkpoint.world_size}
    sealed = {"step": None} | {name: manifest.settings[name] for name in described if name in manifest.settings}
    said = {"training": checkpoint.training, "generation": checkpoint.generation}
    wrong = {name: value for name, value in sealed.items() if value != described[name]}
    wrong |= {name: found for name, value in said.items() if (found := manifest.provenance.get(name, value)) != value}
    if manifest.uri != place or wrong:
        what = ", ".join(f"{name} {value}" for name, value in wrong.items()) or f"lies at {manifest.uri}"
        raise CorruptError(
            f"{path} is whole, but does not belong to {checkpoint.training} at step {checkpoint.step}: {what}.",
            details={"file": path},
        )


def num_weight_bytes(manifest: Manifest) -> int:
    """Bytes of the module's parameters and buffers in a checkpoint."""
    return sum(file.bytes for file in manifest.files if file.path.startswith(WEIGHT_FILES))


def read_trained_with(store: Store, manifest: Manifest) -> dict[str, Any]:
    """The settings, code and data of a checkpoint, sealed beside its weights; CorruptError if they are changed."""
    return store.read_sealed_as(manifest, TRAIN, dict)
