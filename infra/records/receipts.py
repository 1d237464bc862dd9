"""An alias's receipts as a chain: each names the previous receipt, and carries the holds that apply after its move.

A rollback puts the checkpoint that it leaves on hold, until a person lifts the hold. Receipts of earlier versions have
no `move.json`; their holds are derived from the rollbacks among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from data_contracts.alias_moves import Hold
from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.handoffs import FileEntry, Receipt, Ref
from infra.store import Manifest, Store, Versioned, Writer, layout
from infra.store.records import parsed

RECEIPT, MOVE = "receipt.json", "move.json"
Holds = tuple[Hold, ...]


def chain(store: Store, newest: Ref | None, read: Callable[[Ref], Manifest] | None = None) -> Iterator[Manifest]:
    """The manifests of a chain of receipts, the newest first; CorruptError naming one that is changed or gone.

    Args:
        read: `store.verify` to read the bytes of each receipt again; default `store.manifest`.
    """
    while newest is not None:
        manifest = pointed_at(read or store.manifest, newest)
        yield manifest
        newest = parsed(layout.manifest(manifest.uri), _previous, manifest.provenance)


def _previous(provenance: Mapping[str, Any]) -> Ref | None:
    previous = provenance["previous_receipt"]
    return None if previous is None else Ref.model_validate(previous)


def read_receipt(store: Store, manifest: Manifest) -> Receipt:
    """The receipt of a sealed directory, with its ref."""
    return store.read_sealed_as(manifest, RECEIPT, Receipt.from_json).model_copy(update={"ref": manifest.ref})


def holds_after(store: Store, newest: Ref | None) -> Holds:
    """The holds that apply after a receipt, in the order in which they were placed.

    Only the newest receipt is read, unless earlier versions wrote it: then all back to the newest that carries holds.
    """
    earlier: list[Manifest] = []
    held: Holds = ()
    for manifest in chain(store, newest, store.verify):
        if any(entry.path == MOVE for entry in manifest.files):
            held = store.read_sealed_as(
                manifest, MOVE, lambda move: tuple(Hold.model_validate(one) for one in move["held"])
            )
            break
        earlier.append(manifest)
    for manifest in reversed(earlier):
        held = _after_earlier(store, manifest, held)
    return held


def put_move(writer: Writer, run_id: str, holds: Holds) -> FileEntry:
    """Write `move.json` into the directory of a receipt that is about to be sealed.

    It contains the run's id, so that equal receipts of two runs differ.
    """
    value = {"schema_version": 1, "run_id": run_id, "held": [one.to_json() for one in holds]}
    return writer.put(MOVE, canonical(value))


def with_hold(holds: Holds, new: Hold) -> Holds:
    """`holds` with a hold added, which replaces an older hold on the same checkpoint."""
    return (*without_hold(holds, new.checkpoint_id), new)


def without_hold(holds: Holds, checkpoint_id: str) -> Holds:
    """`holds` without the hold on a checkpoint."""
    return tuple(one for one in holds if one.checkpoint_id != checkpoint_id)


def is_signed(store: Store, receipt: Ref | None) -> bool:
    """Whether a receipt has a signature beside it, which may be anything."""
    return receipt is not None and store.exists(layout.signature(receipt.uri, "receipt.dsse"))


def is_rollback(receipt: Receipt) -> bool:
    """Whether a person moved the alias back; earlier versions left no note, but always this sentence."""
    went_back = f"{receipt.model}@{receipt.alias} went back from version "
    return receipt.incident is not None or receipt.sentence.startswith(went_back)


def has_ended(current: Versioned) -> bool:
    """Whether an alias stands for nothing any more: the canary that stood under it has ended."""
    return bool(current.value.get("ended"))


def ends(receipt: Receipt, expected: Versioned | None) -> bool:
    """Whether an alias stands for nothing after a move, or still does, such as when a hold is lifted."""
    stays = receipt.decision == "unchanged" and expected is not None and has_ended(expected)
    return receipt.decision == "ended" or stays


def pointed_at(read: Callable[[Ref], Manifest], ref: Ref) -> Manifest:
    """Read the manifest that an alias or a receipt names; CorruptError if it is gone."""
    try:
        return read(ref)
    except FileNotFoundError as error:
        path = layout.manifest(ref.uri)
        raise CorruptError(f"{path}, which an alias or a receipt names, is missing.", details={"file": path}) from error


def _after_earlier(store: Store, manifest: Manifest, holds: Holds) -> Holds:
    """`holds` after a move whose receipt carries no holds: only a rollback, recognised by its sentence, changes it."""
    receipt = read_receipt(store, manifest)
    if not is_rollback(receipt):
        return holds
    left, back = _checkpoint_id(store, receipt.champion), _checkpoint_id(store, receipt.candidate)
    if left is not None:
        about = manifest.provenance
        by, at = about.get("actor") or "someone", about.get("finished") or about.get("started") or ""
        holds = with_hold(holds, Hold(checkpoint_id=left, version=receipt.previous or 0, by=by, at=at))
    return holds if back is None else without_hold(holds, back)


def _checkpoint_id(store: Store, version: Ref | None) -> str | None:
    """The checkpoint of a model version; None if the version was deleted."""
    if version is None or store.exists(layout.tombstone(version.uri)):
        return None
    return pointed_at(store.manifest, version).settings["checkpoint_id"]
