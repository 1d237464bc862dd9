"""Versions of models, numbered by create-once; aliases by compare-and-set, and the receipts of every move.

A version is a sealed directory without files: it points to its checkpoint and evaluation and copies nothing. A recipe
is sealed once under the digest of its content.

An alias's history is a chain: the alias names its newest receipt, and each receipt names the previous one. So a receipt
that was sealed for a move that then lost is in the folder but never in the history.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import platform
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from data_contracts.canonical import KEY_LENGTH, canonical, is_name, plain
from data_contracts.errors import CorruptError, Interrupted, StorageUnavailable
from data_contracts.handoffs import Checkpoint, ModelVersion, Receipt, Ref
from data_contracts.resolved import OwnRevision, Recipe, Resolved
from infra import audit
from infra.approvals import pin, protections, refuse_gone
from infra.code_bundle import source_digest
from infra.models import exposures
from infra.processes.processes import CODE_ROOT
from infra.records.receipts import (
    RECEIPT,
    Holds,
    chain,
    ends,
    has_ended,
    holds_after,
    pointed_at,
    put_move,
    read_receipt,
)
from infra.signing.keys import SigningKey
from infra.signing.signatures import key_of_move, sign_receipt, withdraw, withdraw_others
from infra.store import AlreadySealed, Manifest, Pointer, PointerMoved, Store, Versioned, layout
from infra.store.records import SCHEMA, corrupt, parsed
from infra.store.store import numbers

log = logging.getLogger("trainwright")
AREA, KIND, FILE = "recipes", "recipe", "recipe.json"


def next_version(store: Store, name: str) -> int:
    """The next version number, from 1; another process may take it first. Deleted numbers are not used again."""
    folder = layout.models(name)
    return max(numbers(store, folder) + numbers(store, f"tombstones/{folder}"), default=0) + 1


def write_version(
    store: Store,
    name: str,
    checkpoint: Checkpoint,
    evaluation: Ref,
    settings: Mapping[str, object],
    provenance: Mapping[str, object],
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


def seal_recipe(store: Store, resolved: Resolved, provenance: Mapping[str, object]) -> Ref:
    """Seal the recipe of a run on this installation, unless it is sealed already."""
    packages = audit.lock()
    recipe = Recipe(
        # What is installed now, not when the run began: a run may be resumed after an upgrade.
        resolved=resolved.model_copy(update={"lock_digest": audit.lock_digest(packages)}),
        lock=packages,
        python=platform.python_version(),
        trainwright=own_revision(),
    )
    # Not in canonical form: the order of splits and of arguments counts.
    data = plain(recipe.to_json())
    # Not one that was deleted, or is about to be.
    uri = next(filter(store.claim, (layout.attempt(AREA, _name_of(data), n) for n in itertools.count())))
    writer = store.writer(uri, afresh=True)
    writer.put(FILE, data)
    return writer.seal(KIND, {}, {**provenance, "parents": []})


def read_recipe(store: Store, ref: Ref) -> Recipe:
    """A sealed recipe; CorruptError if its bytes, or what its name stands for, are not as sealed."""
    manifest = store.verify(ref)
    check_recipe(store, manifest)
    return store.read_sealed_as(manifest, FILE, Recipe.from_json)


def check_recipe(store: Store, manifest: Manifest) -> None:
    """Raise CorruptError unless a recipe is what its name, a digest, stands for."""
    name = manifest.uri.removeprefix(f"{AREA}/").rpartition("-")[0]
    path = f"{manifest.uri}/{FILE}"
    if manifest.kind != KIND or _name_of(store.read_sealed(manifest, FILE)) != name:
        raise CorruptError(f"{path} is not the recipe that its name stands for.", details={"file": path})
    recipe = store.read_sealed_as(manifest, FILE, Recipe.from_json)
    if recipe.resolved.lock_digest != audit.lock_digest(recipe.lock):
        raise CorruptError(f"{path} has a lock that is not the one whose digest it names.", details={"file": path})


def _name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:KEY_LENGTH]


@functools.cache
def own_revision() -> OwnRevision:
    """The Trainwright that runs in this process."""
    revision, dirty = audit.revision(CODE_ROOT)
    return OwnRevision(source=source_digest(), revision=revision, dirty=dirty)


def aliases(store: Store, *, ended: bool = False) -> list[tuple[str, str, int]]:
    """Every alias of every model, as (model, alias, version); with `ended`, also those that have ended."""
    listed = []
    for model in filter(is_name, store.list(layout.aliases())):  # what is no name was not made by Trainwright
        # Also one whose pointer is gone: what is left of it is its history.
        listed_names = {*store.list(layout.aliases(model)), *store.list(layout.histories(model))} - {"history"}
        for alias in filter(is_name, sorted(listed_names)):
            held = read_alias(store, model, alias)
            if held is not None and (ended or not has_ended(held[0])):
                listed.append((model, alias, held[1]))
    return listed


def read_alias(store: Store, model: str, alias: str) -> tuple[Versioned, int] | None:
    """The alias's pointer, as a later `move_alias` expects it, and the version it names; None if it names nothing.

    CorruptError if the pointer is gone, although the alias was moved.
    """
    pointer = store.pointer(layout.alias(model, alias))
    current = pointer.read()
    if current is None:
        moved = _second_or_later(store, model, alias)
        current = None if moved is None else pointer.read()  # it may have been made since
        if moved is not None and current is None:
            raise corrupt(pointer.path, f"is missing, although receipt {moved} of its history follows another")
    return None if current is None else (current, _version_named(store, pointer.path, current))


def _second_or_later(store: Store, model: str, alias: str) -> int | None:
    """The number of a receipt of the alias that follows another, or None: then it was never moved twice."""
    for k in sorted(numbers(store, layout.history(model, alias)), reverse=True):
        with contextlib.suppress(FileNotFoundError):  # it was never sealed
            if store.manifest(layout.receipt(model, alias, k)).provenance.get("previous_receipt") is not None:
                return k
    return None


def holds(store: Store, current: Versioned | None) -> Holds:
    """The holds of an alias whose pointer was read as `current`; a move that expects `current` obeys them."""
    return holds_after(store, newest_receipt(current))


def move_alias(
    store: Store,
    expected: Versioned | None,
    version: ModelVersion,
    receipt: Receipt,
    provenance: Mapping[str, object],
    holds: Holds,
    key: SigningKey | None = None,
) -> Receipt:
    """Seal `receipt` as the next in its alias's history, then make the alias name `version`.

    If the answer is lost, the chain of receipts shows whether the move was made, even if the alias has moved since.

    Args:
        expected: the result of `read_alias`, or None if the alias named nothing.
        holds: those that apply after the move.
        key: signs the receipt; default: the key that `TRAINWRIGHT_SIGNING_KEY` names, if it is set.

    Returns:
        The receipt with its ref; its sentence says so if the alias has moved since.

    Raises:
        PointerMoved: another process moved the alias; its history is unchanged then.
        StorageUnavailable: it is unknown whether the alias moved.
        UsageError: the newest receipt is signed, and there is no key for this one.
    """
    pointer = store.pointer(layout.alias(receipt.model, receipt.alias))
    current = pointer.read()
    if current != expected:
        raise PointerMoved(pointer.path, current)
    key = key_of_move(store, newest_receipt(current), f"{receipt.model}@{receipt.alias}", key)
    sealed = _seal_next(store, expected, receipt, provenance, holds)
    if key is not None:
        # Before the move, so that the alias never names a receipt without a signature.
        sign_receipt(store, sealed, key)
    value = {"model_version": version.ref.to_json(), "receipt": sealed.to_json(), "version": version.version}
    value |= {"ended": True} if ends(receipt, expected) else {}
    receipt = receipt.model_copy(update={"ref": sealed})
    try:
        pointer.swap(expected, value)
    except (PointerMoved, Interrupted) as error:
        try:
            current = _settled(store, pointer, expected, sealed, error)
        except PointerMoved:
            if key is not None:
                withdraw(store, sealed)
            raise
        if current.value["receipt"] != sealed.to_json():
            return moved_on(receipt, current)
    if key is not None:
        try:
            withdraw_others(store, sealed)
        except Interrupted as error:  # the move is made, whatever becomes of this
            log.warning("The alias moved, but the signatures of stopped moves were not deleted: %s", error.message)
    return receipt


def moved_on(receipt: Receipt, current: Versioned) -> Receipt:
    """A receipt of a completed move, with the version that the alias names now at the end of its sentence."""
    now = f"{receipt.sentence}; it was moved again since and is version {current.value['version']} now"
    return receipt.model_copy(update={"sentence": now})


def history(store: Store, model: str, alias: str) -> list[Receipt]:
    """The receipts of the alias's moves, oldest first, each re-read and its seal checked.

    CorruptError naming what is changed or gone.
    """
    return [receipt for receipt, _ in moves(store, model, alias)]


def moves(store: Store, model: str, alias: str) -> list[tuple[Receipt, dict[str, Any]]]:
    """The receipts as `history` returns them, each with the provenance of its move (actor, trigger, run, times)."""
    named = read_alias(store, model, alias)
    newest = newest_receipt(None if named is None else named[0])
    return [(read_receipt(store, one), one.provenance) for one in chain(store, newest, store.verify)][::-1]


def newest_move(store: Store, model: str, alias: str) -> tuple[Receipt, dict[str, Any]] | None:
    """The alias's newest receipt with the provenance of its move; None if there is none. Reads no earlier receipt."""
    named = read_alias(store, model, alias)
    newest = next(chain(store, newest_receipt(None if named is None else named[0])), None)
    return None if newest is None else (read_receipt(store, newest), newest.provenance)


def newest_mover(store: Store, model: str, alias: str) -> str:
    """The id of the run, or of the rollback, that moved the alias last; "" if there is none."""
    newest = newest_move(store, model, alias)
    return "" if newest is None else str(newest[1].get("run_id", ""))


def receipt_of_run(store: Store, current: Versioned, run_id: str, since: str) -> Receipt | None:
    """The receipt of a run's move of the alias, if it is in the chain that the pointer `current` names; else None.

    Args:
        since: when the run began (ISO 8601); receipts from more than a day before are not read. The day allows for
            clocks that differ.
    """
    earliest = datetime.fromisoformat(since) - timedelta(days=1)
    for manifest in chain(store, newest_receipt(current)):
        about = manifest.provenance
        if about.get("run_id") == run_id:
            return read_receipt(store, store.verify(manifest.ref))
        if "finished" in about and datetime.fromisoformat(about["finished"]) < earliest:
            break
    return None


def _version_named(store: Store, path: str, current: Versioned) -> int:
    """The version that an alias names; CorruptError if it is not an alias, or is an older record in its place."""

    def parse(value: Any) -> tuple[int, Ref]:
        Ref.model_validate(value["model_version"])
        if type(value["version"]) is not int:
            raise TypeError("version is not a number")
        return value["version"], Ref.model_validate(value["receipt"])

    version, receipt = parsed(path, parse, current.value)
    schema = current.schema
    if schema < SCHEMA and pointed_at(store.manifest, receipt).provenance.get("alias_schema", 1) > schema:
        raise corrupt(path, f"has schema {schema}, although the receipt that it names was sealed with a later one")
    return version


def newest_receipt(current: Versioned | None) -> Ref | None:
    """The newest receipt of an alias whose pointer was read as `current`; its seal stands for the alias's state."""
    return None if current is None else Ref.model_validate(current.value["receipt"])


def _settled(
    store: Store, pointer: Pointer, expected: Versioned | None, sealed: Ref, error: PointerMoved | Interrupted
) -> Versioned:
    """What the alias holds now, if the move with the receipt `sealed` was made although the answer was an error.

    PointerMoved if it was not made and no longer can be, StorageUnavailable if that is unknown.
    """
    unknown = StorageUnavailable(
        f"The store did not answer while {pointer.path} was moved; it is unknown whether the alias was moved.",
        remedy="Look at `trainwright show` once the store answers, before you try again.",
    )
    before = None if expected is None else expected.value["receipt"]
    try:
        current = pointer.read()
        # Our receipt can only be newer than the receipt that it follows.
        since = itertools.takewhile(lambda one: one.ref.to_json() != before, chain(store, newest_receipt(current)))
        if current is not None and any(manifest.ref == sealed for manifest in since):
            return current
    except Interrupted:
        raise unknown from error
    if current == expected:  # a request that is still on its way may yet arrive
        raise unknown from error
    raise PointerMoved(pointer.path, current) from error


def _seal_next(
    store: Store, expected: Versioned | None, receipt: Receipt, provenance: Mapping[str, object], holds: Holds
) -> Ref:
    """Seal the receipt that follows the alias's newest, with what was decided about the alias's protection."""
    model, alias = receipt.model, receipt.alias
    decided = protections(store, model, alias)
    refuse_gone(store, decided, newest_receipt(expected), f"{model}@{alias}")
    previous = None if expected is None else expected.value["receipt"]
    # An alias of an earlier schema that names this receipt is not the alias that was written.
    about = {**provenance, "previous_receipt": previous, "alias_schema": SCHEMA}
    about |= {"protection": pin(decided)} if decided else {}
    exposed = exposures.next_statement(store, newest_receipt(expected))
    about |= {"exposures": exposed} if exposed else {}
    settings = {
        "model": model,
        "alias": alias,
        "decision": receipt.decision,
        "version": receipt.version,
        # In the content, so that equal receipts after different moves are never confused.
        "previous_receipt": previous and previous["id"],
    }
    data = canonical(receipt.model_copy(update={"ref": None}).to_json())
    k = max(numbers(store, layout.history(model, alias)), default=-1) + 1
    while True:
        writer = store.writer(layout.receipt(model, alias, k))
        try:
            files = [writer.put(RECEIPT, data), put_move(writer, str(provenance.get("run_id", "")), holds)]
            return writer.seal("receipt", settings, about, files=files)
        except CorruptError:  # another process took this number, sealed or about to be
            k += 1
