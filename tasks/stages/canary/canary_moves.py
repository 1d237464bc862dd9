"""Moves the aliases after a canary has ended: the champion's alias moves, or does not, and the alias `canary` ends.

The end is in the store before an alias moves, so if a run is killed here, the next run does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data_contracts.alias_moves import ALIAS, CanaryEnd, CanaryNote, Hold, Night, Outcome, Standing
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Receipt, Ref
from infra.audit import now
from infra.models import canaries, registry
from infra.models.canaries import Canary
from infra.records.receipts import chain, has_ended, read_receipt, with_hold, without_hold
from infra.store import Store, Versioned

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


@dataclass(frozen=True)
class Mover:
    """Who moves.

    Attributes:
        about: the provenance of the receipts.
        key: signs them; None for the key of the environment, if there is one.
    """

    about: dict[str, Any]
    key: SigningKey | None = None


def note(
    canary: Canary, outcome: Outcome, reason: str, standing: Standing | None = None, nights: list[Night] | None = None
) -> CanaryNote:
    """What receipts keep of a canary."""
    return CanaryNote(
        seal=canary.seal,
        version=canary.version.version,
        outcome=outcome,
        reason=reason,
        terms=canary.terms,
        standing=standing,
        nights=nights or [],
    )


def follow(store: Store, canary: Canary, end: CanaryEnd, mover: Mover, refused: str = "") -> Receipt | None:
    """Move the aliases as a canary's end says; another call does what is left.

    Args:
        refused: why the champion's alias must not move whatever the end says; "" if it may.

    Returns:
        The receipt of the champion's move, if this call made it; else None.

    Raises:
        PointerMoved: another process moved an alias at the same time; it may have done the same.
    """
    moved, failed = _promoted(store, canary, end, mover, refused) if end.outcome == "promoted" else (None, "")
    _ended(store, canary, end, mover, failed)
    return moved


def promotion_of(store: Store, canary: Canary, since: dict[str, Any] | None = None) -> Receipt | None:
    """The receipt by which a canary was promoted; None if it was not.

    Args:
        since: a receipt of the champion's history; older ones are not read.
    """
    found = registry.read_alias(store, canary.model, canary.terms.alias)
    for manifest in chain(store, None if found is None else Ref.model_validate(found[0].value["receipt"])):
        if since is not None and manifest.ref.to_json() == since:
            return None
        receipt = read_receipt(store, manifest)
        if receipt.canary is not None and receipt.canary.seal == canary.seal:
            return receipt
    return None


def is_to_move(store: Store, canary: Canary, end: CanaryEnd) -> bool:
    """Whether the champion's alias still names what a canary's end says, so that it has not followed."""
    found = registry.read_alias(store, canary.model, canary.terms.alias)
    return found is not None and found[0].value["receipt"] == end.champion_receipt


def is_forced(canary: Canary, hold: Hold | None) -> bool:
    """Whether a canary's checkpoint was on hold when a person let it stand nevertheless."""
    force = canary.receipt.force
    return hold is not None and force is not None and force.held == hold.sentence


def _promoted(store: Store, canary: Canary, end: CanaryEnd, mover: Mover, refused: str) -> tuple[Receipt | None, str]:
    """Move the champion's alias, unless that is done.

    Returns:
        The receipt if this call moved it, and why it can no longer be moved, as the end of a sentence ("" if it can).
    """
    found = registry.read_alias(store, canary.model, canary.terms.alias)
    if found is None or found[0].value["receipt"] != end.champion_receipt:
        if promotion_of(store, canary, end.champion_receipt) is not None:
            return None, ""
        moved_to = "names nothing" if found is None else f"was moved to version {found[1]}"
        return None, f"{canary.name} {moved_to} before it could be promoted"
    if refused:
        return None, refused
    try:
        store.verify(canary.version.checkpoint.ref)
    except (CorruptError, FileNotFoundError):
        return None, f"its checkpoint {canary.version.checkpoint.ref.uri} is not as it was sealed"
    current, previous = found
    version, held = canary.version, registry.holds(store, current)
    hold = next((one for one in held if one.checkpoint_id == version.checkpoint.ref.id), None)
    try:
        nights = canaries.nights_of(store, canary, previous)
    except CorruptError as error:
        return None, error.message.rstrip(".")
    sentence = f"{canary.name} is version {version.version}, was {previous}: {end.reason}"
    lifts = canary.receipt.force if is_forced(canary, hold) else None
    receipt = Receipt(
        decision="promoted",
        model=canary.model,
        alias=canary.terms.alias,
        version=version.version,
        previous=previous,
        gates=[end.gate] if end.gate is not None else [],
        candidate=version.ref,
        evaluation=version.evaluation,
        champion=Ref.model_validate(current.value["model_version"]),
        contamination=canary.receipt.contamination,
        sentence=sentence if lifts is None else f'{sentence}; {lifts.by} lifted its hold: "{lifts.reason}"',
        quarantined_rows=canary.receipt.quarantined_rows,
        approval=end.approval,
        force=lifts,
        required=canary.receipt.required,
        canary=note(canary, end.outcome, end.reason, end.standing, nights),
    )
    about = _parents(mover.about, version.ref, version.evaluation, receipt.champion, canary.receipt.ref)
    kept = without_hold(held, version.checkpoint.ref.id)
    return registry.move_alias(store, current, version, receipt, about, kept, mover.key), ""


def _ended(store: Store, canary: Canary, end: CanaryEnd, mover: Mover, failed: str) -> None:
    """End the alias `canary`, if it still names this canary, and put a withdrawn checkpoint on hold.

    Args:
        failed: why a canary was not promoted that should have been; its checkpoint may stand again.
    """
    found = registry.read_alias(store, canary.model, ALIAS)
    standing = None if found is None or has_ended(found[0]) else canaries.standing_canary(store, canary.model)
    if standing is None or standing.seal != canary.seal:
        return
    version, held = canary.version, registry.holds(store, standing.pointer)
    if end.outcome != "promoted":
        hold = Hold(
            checkpoint_id=version.checkpoint.ref.id,
            version=version.version,
            by=end.by,
            at=end.at,
            reason=end.reason,
            withdrawn=True,
        )
        held = with_hold(held, hold)
    receipt = Receipt(
        decision="ended",
        model=canary.model,
        alias=ALIAS,
        version=version.version,
        previous=version.version,
        candidate=version.ref,
        evaluation=version.evaluation,
        sentence=canaries.ending(canary, end, failed),
        canary=note(canary, "withdrawn" if failed else end.outcome, end.reason, end.standing),
    )
    about = _parents(mover.about, version.ref, canary.receipt.ref)
    registry.move_alias(store, standing.pointer, version, receipt, about, held, mover.key)


def free(store: Store, model: str, current: Versioned, reason: str, mover: Mover) -> Receipt:
    """End an alias `canary` that names no standing canary, because a person or another pipeline moved it."""
    version = registry.model_version(store, Ref.model_validate(current.value["model_version"]))
    receipt = Receipt(
        decision="ended",
        model=model,
        alias=ALIAS,
        version=version.version,
        previous=version.version,
        candidate=version.ref,
        evaluation=version.evaluation,
        sentence=f'{model}@{ALIAS}, version {version.version}, was freed: "{reason}"',
    )
    held = registry.holds(store, current)
    return registry.move_alias(store, current, version, receipt, _parents(mover.about, version.ref), held, mover.key)


def end_by_withdrawal(
    store: Store, canary: Canary, by: str, reason: str, standing: Standing | None, mover: Mover
) -> CanaryEnd:
    """Take a canary back; returns the end that counts, which may be an earlier one.

    UsageError if it is being promoted, which only a run completes: it checks the approval. PointerMoved as of `follow`.
    """
    wanted = CanaryEnd(
        outcome="withdrawn", reason=f'{by} took it back: "{reason}"', by=by, at=now(), run_id="", standing=standing
    )
    try:
        end = canaries.end(store, canary, wanted)
    except CorruptError:  # an earlier end cannot be read, and this one moves no champion
        end = wanted
    if end.outcome == "promoted" and is_to_move(store, canary, end):
        raise UsageError(
            f"{canary.model}@{ALIAS}, version {canary.version.version}, is being promoted by the run {end.run_id}, "
            "which was first.",
            remedy=f"The next run completes it; `trainwright rollback {canary.name} --reason WHY` takes it back then.",
        )
    follow(store, canary, end, mover)
    return end


def _parents(about: dict[str, Any], *refs: Ref | None) -> dict[str, Any]:
    return {**about, "parents": [one.to_json() for one in refs if one is not None]}
