"""What a training begins with: `train.init_from` looked up once, as a sealed parent that may be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.spec import PipelineSpec
from infra.imports import import_weights
from infra.store import Store, layout
from tasks.proof import find_version


def resolve_init(spec: PipelineSpec, path: Path, store: Store, provenance: dict[str, Any]) -> Ref | None:
    """The checkpoint or import that the training begins with, every byte read again; None without `train.init_from`.

    Raises:
        UsageError: there is no such checkpoint, model or file, or the checkpoint is not verified.
        CorruptError: its bytes are not what was sealed, or not those of the digest.
    """
    wanted, field = spec.train.init_from, f"{path}: train.init_from"
    if wanted is None:
        return None
    if wanted.source == "outside":
        return import_weights(store, wanted, path.parent, provenance, field=field)
    if wanted.source == "checkpoint":
        return _verified(store, wanted.weights, field)
    try:
        version, _ = find_version(store, wanted.weights)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", remedy=error.remedy) from error
    held = _verified(store, version.checkpoint.ref.uri, field)
    if held != version.checkpoint.ref:
        raise CorruptError(f"{field}: {held.uri} is not the checkpoint that {wanted.weights} was made of.")
    return held


def _verified(store: Store, uri: str, field: str) -> Ref:
    if not store.claim("/".join(uri.split("/")[:2])):
        raise UsageError(f"{field}: {uri} was deleted.", remedy="Name another checkpoint.")
    if store.exists(layout.quarantined(uri)):
        reason = store.read_json(layout.quarantined(uri))["reason"]
        raise UsageError(f"{field}: {uri} is quarantined: {reason}", remedy="Name another checkpoint.")
    try:
        held = store.verify(uri).ref
    except FileNotFoundError:
        raise UsageError(
            f"{field}: {store.uri} has no checkpoint {uri}.", remedy="`trainwright checkpoints RUN` lists a run's."
        ) from None
    mark = layout.verified(uri)
    if not store.exists(mark):
        raise UsageError(
            f"{field}: {uri} is not verified.",
            remedy="Run `trainwright verify` with the spec that trained it; only what train hands over is verified.",
        )
    if Ref.model_validate(store.read_json(mark)["checkpoint"]) != held:
        raise CorruptError(f"{field}: {uri} is not the checkpoint that was verified.")
    return held
