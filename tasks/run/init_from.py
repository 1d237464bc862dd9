"""The first weights of a training: resolves `train.init_from` once, to a sealed parent that may be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.pipeline_spec import PipelineSpec
from infra.records.handoffs import is_verified
from infra.store import Store, layout
from infra.weights import import_weights
from tasks.run.versions import find_version


def resolve_init(spec: PipelineSpec, path: Path, store: Store, provenance: dict[str, Any]) -> Ref | None:
    """The checkpoint or import that the training begins with, every byte read again; None without `train.init_from`.

    Raises:
        UsageError: there is no such checkpoint, model or file, or the checkpoint is not verified.
        CorruptError: its bytes do not match the seal or the digest.
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
        raise CorruptError(f"{field}: {held.uri} is not the checkpoint that {wanted.weights} was made from.")
    return held


def _verified(store: Store, uri: str, field: str) -> Ref:
    if not store.claim("/".join(uri.split("/")[:2])):
        raise UsageError(f"{field}: {uri} was deleted.", remedy="Name another checkpoint.")
    if store.exists(layout.quarantined(uri)):
        reason = store.read_as(layout.quarantined(uri), lambda mark: str(mark["reason"]))
        raise UsageError(f"{field}: {uri} is quarantined: {reason}", remedy="Name another checkpoint.")
    try:
        held = store.verify(uri).ref
    except FileNotFoundError:
        raise UsageError(
            f"{field}: {store.uri} has no checkpoint {uri}.", remedy="`trainwright checkpoints RUN` lists a run's."
        ) from None
    try:
        is_usable = is_verified(store, held)
    except CorruptError as error:
        raise CorruptError(f"{field}: {error.message}", remedy=error.remedy, details=error.details) from error
    if not is_usable:
        raise UsageError(
            f"{field}: {uri} is not verified.",
            remedy="Run `trainwright verify` with the spec that trained it; only what train hands over is verified.",
        )
    return held
