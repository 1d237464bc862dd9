"""Model versions by create-once, aliases by compare-and-set, and the receipts of every move.

A version is a sealed directory without files: it points to its checkpoint and evaluation and copies nothing. An
alias' history is a chain: the alias names its newest receipt, each receipt the one before, so a receipt that was
sealed for a move that then lost is in the folder but never in the history.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, ModelVersion, Receipt, Ref
from infra.store import AlreadySealed, Manifest, PointerMoved, Store, Versioned, layout


def next_version(store: Store, name: str) -> int:
    """The version that comes next, from 1; another may take it first. A deleted version's number is not used again."""
    folder = layout.models(name)
    return max(_numbers(store, folder) + _numbers(store, f"tombstones/{folder}"), default=0) + 1


def write_version(
    store: Store,
    name: str,
    checkpoint: Checkpoint,
    evaluation: Ref,
    settings: dict[str, Any],
    provenance: dict[str, Any],
) -> ModelVersion:
    """Seal the next version of model `name`.

    If the newest version is of the same checkpoint, evaluation and settings, it is returned instead: a promotion
    that was cut off after this step does not count twice.
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
    """A version, its seal checked. FileNotFoundError, CorruptError."""
    return _model_version(store.manifest(layout.model(name, version)))


def model_version(store: Store, ref: Ref) -> ModelVersion:
    """The version that a pointer or a receipt names; CorruptError if it is gone or not what was named."""
    return _model_version(_pointed_at(store.manifest, ref))


def aliases(store: Store) -> list[tuple[str, str, int]]:
    """Every alias of every model, as (model, alias, version)."""
    found = []
    for model in store.list(layout.aliases()):
        for alias in store.list(layout.aliases(model)):
            if alias != "history" and (held := read_alias(store, model, alias)) is not None:
                found.append((model, alias, held[1]))
    return found


def read_alias(store: Store, model: str, alias: str) -> tuple[Versioned, int] | None:
    """The alias' pointer, as a later `move_alias` expects it, and the version it names; None if it names nothing."""
    held = store.pointer(layout.alias(model, alias)).read()
    return None if held is None else (held, held.value["version"])


def move_alias(
    store: Store,
    model: str,
    alias: str,
    expected: Versioned | None,
    version: ModelVersion,
    receipt: Receipt,
    provenance: dict[str, Any],
) -> Receipt:
    """Seal `receipt` as the next of the alias' history, then make the alias name `version`.

    Args:
        expected: what `read_alias` gave, or None if the alias named nothing.

    Returns: the receipt with its ref. Raises: PointerMoved if another moved the alias; its history is unchanged then.
    """
    pointer = store.pointer(layout.alias(model, alias))
    current = pointer.read()
    if current != expected:
        raise PointerMoved(pointer.path, current)
    previous = None if expected is None else expected.value["receipt"]
    sealed = _seal_receipt(store, model, alias, receipt, {**provenance, "previous_receipt": previous})
    pointer.swap(
        expected, {"model_version": version.ref.to_json(), "receipt": sealed.to_json(), "version": version.version}
    )
    return receipt.model_copy(update={"ref": sealed})


def history(store: Store, model: str, alias: str) -> list[Receipt]:
    """The receipts of the moves that the alias made, oldest first, each re-read and its seal checked.

    CorruptError naming what is changed or gone.
    """
    held = store.pointer(layout.alias(model, alias)).read()
    following = None if held is None else held.value["receipt"]
    receipts: list[Receipt] = []
    while following is not None:
        manifest = _pointed_at(store.verify, Ref.model_validate(following))
        text = store.read_json(f"{manifest.uri}/receipt.json")
        receipts.append(Receipt.from_json(text).model_copy(update={"ref": manifest.ref}))
        following = manifest.provenance["previous_receipt"]
    return receipts[::-1]


def _pointed_at(read: Callable[[Ref], Manifest], ref: Ref) -> Manifest:
    """What an alias or a receipt names must be there."""
    try:
        return read(ref)
    except FileNotFoundError as error:
        path = layout.manifest(ref.uri)
        raise CorruptError(f"{path}, which an alias or a receipt names, is gone.", details={"file": path}) from error


def _seal_receipt(store: Store, model: str, alias: str, receipt: Receipt, provenance: dict[str, Any]) -> Ref:
    before = provenance["previous_receipt"]
    about = {
        "model": model,
        "alias": alias,
        "decision": receipt.decision,
        "version": receipt.version,
        # In the content, so that equal receipts after different moves are never taken for one.
        "previous_receipt": before and before["id"],
    }
    data = canonical(receipt.model_copy(update={"ref": None}).to_json())
    k = max(_numbers(store, layout.history(model, alias)), default=-1) + 1
    while True:
        writer = store.writer(layout.receipt(model, alias, k))
        try:
            entry = writer.put("receipt.json", data)
            return writer.seal("receipt", about, provenance, files=[entry])
        except CorruptError:  # another took this number, sealed or about to be
            k += 1


def _numbers(store: Store, folder: str) -> list[int]:
    names = [name.removesuffix(".json") for name in store.list(folder)]
    return [int(name) for name in names if name.isdecimal()]


def _model_version(manifest: Manifest) -> ModelVersion:
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
