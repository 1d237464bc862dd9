"""Versions of models, numbered by create-once.

A version is a sealed directory without files: it points to its checkpoint and evaluation and copies nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, ModelVersion, Ref
from infra.records.receipts import pointed_at
from infra.store import AlreadySealed, Manifest, Store, layout
from infra.store.records import parsed


def next_version(store: Store, name: str) -> int:
    """The next version number, from 1; another process may take it first. Deleted numbers are not used again."""
    folder = layout.models(name)
    return max(numbers(store, folder) + numbers(store, f"tombstones/{folder}"), default=0) + 1


def write_version(
    store: Store,
    name: str,
    checkpoint: Checkpoint,
    evaluation: Ref,
    settings: dict[str, Any],
    provenance: dict[str, Any],
) -> ModelVersion:
    """Seal the next version of model `name`.

    If the newest version has the same checkpoint, evaluation and settings, it is returned instead, so that a promotion
    that was interrupted after this step does not count twice.
    """
    about = {**settings, "name": name, "checkpoint_id": checkpoint.ref.id, "evaluation_id": evaluation.id}
    parents = {**provenance, "checkpoint": checkpoint.to_json(), "evaluation": evaluation.to_json()}
    version = next_version(store, name)
    with contextlib.suppress(FileNotFoundError):
        newest = store.manifest(layout.model(name, version - 1))
        if newest.settings == {**about, "version": version - 1}:
            return _model_version(newest)
    while True:
        writer = store.writer(layout.model(name, version))
        try:
            ref = writer.seal("model", {**about, "version": version}, parents, files=[])
            return _model_version(store.manifest(ref))
        except AlreadySealed:
            version += 1


def read_version(store: Store, name: str, version: int) -> ModelVersion:
    """A version, with its seal checked. FileNotFoundError, CorruptError."""
    return _model_version(store.manifest(layout.model(name, version)))


def model_version(store: Store, ref: Ref) -> ModelVersion:
    """The version that a pointer or a receipt names; CorruptError if it is gone or not what was named."""
    return _model_version(pointed_at(store.manifest, ref))


def numbers(store: Store, folder: str) -> list[int]:
    """The numbers that entries of a folder have as names, in no order."""
    names = [name.removesuffix(".json") for name in store.list(folder)]
    return [int(name) for name in names if name.isdecimal()]


def _model_version(manifest: Manifest) -> ModelVersion:
    return parsed(layout.manifest(manifest.uri), _named_in, manifest)


def _named_in(manifest: Manifest) -> ModelVersion:
    checkpoint = Checkpoint.from_json(manifest.provenance["checkpoint"])
    evaluation = Ref.model_validate(manifest.provenance["evaluation"])
    settings = manifest.settings
    if (checkpoint.ref.id, evaluation.id) != (settings["checkpoint_id"], settings["evaluation_id"]):
        path = layout.manifest(manifest.uri)
        raise CorruptError(f"{path} names one checkpoint and points to another.", details={"file": path})
    return ModelVersion(
        ref=manifest.ref,
        name=settings["name"],
        version=settings["version"],
        checkpoint=checkpoint,
        evaluation=evaluation,
    )
