"""A checkpoint as it is pointed at, and as its own seal tells of it: both must be of one place, training and step.

Whoever may write to a store can seal anything; what a seal cannot do is to make a checkpoint of one step that of
another, or one training's that of another, without being found out here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from blake3 import blake3

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from infra.store import Manifest, Store, layout

KIND = "checkpoint"
TRAIN = "train.json"
# Nothing that anybody could take for something to unpickle.
_FILE = re.compile(r"[a-z0-9-]+\.(json|safetensors)")


def verify_checkpoint(store: Store, checkpoint: Checkpoint) -> Manifest:
    """Read every byte of a checkpoint again; CorruptError if it is changed, or not the one that is told of.

    FileNotFoundError if it is not there.
    """
    manifest = store.verify(checkpoint.ref)
    check_told(manifest, checkpoint)
    return manifest


def check_told(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """CorruptError if a sealed directory is not the checkpoint that a pointer or a hand-off tells of."""
    path = layout.manifest(manifest.uri)
    if manifest.kind != KIND:
        raise CorruptError(f"{path} is a {manifest.kind}, not a checkpoint.", details={"file": path})
    for file in manifest.files:
        if not _FILE.fullmatch(file.path):
            raise CorruptError(f"{manifest.uri} holds {file.path!r}, which is no file of a checkpoint.")
    place = layout.checkpoint(checkpoint.training, checkpoint.step, checkpoint.generation)
    told = {"step": checkpoint.step, "epoch": checkpoint.epoch, "world_size": checkpoint.world_size}
    sealed = {"step": None} | {name: manifest.settings[name] for name in told if name in manifest.settings}
    said = {"training": checkpoint.training, "generation": checkpoint.generation}
    wrong = {name: value for name, value in sealed.items() if value != told[name]}
    wrong |= {name: found for name, value in said.items() if (found := manifest.provenance.get(name, value)) != value}
    if manifest.uri != place or wrong:
        what = ", ".join(f"{name} {value}" for name, value in wrong.items()) or f"lies at {manifest.uri}"
        raise CorruptError(
            f"{path} is whole, but not of {checkpoint.training} at step {checkpoint.step}: {what}.",
            details={"file": path},
        )


def read_trained_with(store: Store, manifest: Manifest) -> dict[str, Any]:
    """What a checkpoint was trained with, as it is sealed beside its weights; CorruptError if that is changed."""
    path = f"{manifest.uri}/{TRAIN}"
    entry = next((file for file in manifest.files if file.path == TRAIN), None)
    try:
        data = store.read(path)
        if entry is None or blake3(data).hexdigest() != entry.blake3:
            raise CorruptError(f"{path} is not what was sealed.", details={"file": path})
        return dict(json.loads(data))
    except FileNotFoundError as error:
        raise CorruptError(f"The checkpoint {manifest.uri} is gone, or has no {TRAIN}.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"{path} is not what a training seals.", details={"file": path}) from error
