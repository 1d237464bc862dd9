"""A person's decisions about an alias: `rollback` and `hold` put checkpoints on hold, `release` lifts that.

The note of a rollback says that the older version is complete, and what was known of both versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from data_contracts.alias_moves import Hold, Incident, VersionFacts
from data_contracts.approvals import MOST_REASON
from data_contracts.errors import CorruptError, OnHold, UsageError
from data_contracts.handoffs import Evaluation, ModelVersion, Receipt, Ref
from infra.approvals import protection
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.records.receipts import Holds, has_ended, is_rollback, with_hold, without_hold
from infra.store import PointerMoved, Store, Versioned
from tasks.run.resolve import existing_version

MOST_EVIDENCE = 20


def rollback(
    store: Store,
    model: str,
    alias: str,
    to: int | None,
    provenance: dict[str, object],
    reason: str = "",
    evidence: Sequence[str] = (),
) -> Receipt:
    """Move an alias back to version `to`, or to the version that it named before.

    Every byte of the older version's checkpoint is read again first. The receipt carries a note of the incident: the
    reason, the evidence, and what was known of both versions.

    The checkpoint that the alias leaves is then on hold: no run promotes it there until it is released. A version that
    is on hold itself must be named by its number, which lifts its hold.

    Raises:
        UsageError: there is no such alias or version, nothing to go back to, or no reason although the alias is
            protected; or someone else moved the alias meanwhile.
        CorruptError: the older version's checkpoint is damaged or gone; the alias stays.
    """
    current, version = _named(store, model, alias)
    if not reason and protection(store, model, alias) is not None:
        raise UsageError(f"{model}@{alias} is protected, so a rollback needs a reason.", remedy="Give --reason WHY.")
    why = checked_reason(reason) if reason else ""
    shown = checked_evidence(evidence)
    if has_ended(current):
        raise UsageError(f"{model}@{alias} was the alias of a canary that has ended, and names no version.")
    held = registry.holds(store, current)
    target = to if to is not None else _previous(store, model, alias, version, held)
    if target is None or target == version:
        raise UsageError(f"{model}@{alias} has no other version to go back to.", remedy="Name one with --to.")
    back = existing_version(store, model, target)
    read = read_again(store, back, stays=f"{model}@{alias} stays at version {version}")
    left = registry.model_version(store, Ref.model_validate(current.value["model_version"]))
    incident = noted(store, left, back, registry.moves(store, model, alias), read)
    receipt = _went_back(model, alias, left, back, incident.model_copy(update={"reason": why, "evidence": shown}))
    by, at = str(provenance.get("actor") or "someone"), str(provenance.get("finished", ""))
    hold = Hold(checkpoint_id=left.checkpoint.ref.id, version=version, by=by, at=at, reason=why)
    held = without_hold(with_hold(held, hold), back.checkpoint.ref.id)
    try:
        return registry.move_alias(store, current, back, receipt, provenance, held)
    except PointerMoved as error:
        raise UsageError(
            f"{model}@{alias} was moved by another process at the same time; it was not rolled back.",
            remedy="Look at `trainwright show` and decide again.",
        ) from error


def release(
    store: Store, model: str, alias: str, which: int | str | None, reason: str, provenance: dict[str, object]
) -> Receipt:
    """Lift the hold of a checkpoint on an alias, which stays where it is; the receipt records who did it and why.

    Args:
        which: a version, a checkpoint's id (or its beginning), or None for the only checkpoint that is on hold.

    Raises:
        UsageError: there is no such alias, no such checkpoint is on hold, or no reason is given.
    """
    why = checked_reason(reason)
    if which == "":
        raise UsageError(
            "--checkpoint: an empty id is not on hold.",
            remedy="Give the checkpoint's id, or its first characters.",
        )

    def released(holds: Holds, by: str) -> tuple[Holds, str]:
        lifted = _chosen(store, model, alias, which, holds)
        sentence = f'version {lifted.version} was released from hold by {by}: "{why}"'
        return without_hold(holds, lifted.checkpoint_id), sentence

    return _stay(store, model, alias, provenance, released)


def hold(
    store: Store,
    model: str,
    alias: str,
    checkpoints: Mapping[str, int],
    made_with: str,
    reason: str,
    provenance: dict[str, object],
) -> Receipt | None:
    """Put checkpoints on hold for an alias, which stays where it is; None if all of them are on hold already.

    Args:
        checkpoints: the version by checkpoint id.
        made_with: the package that makes them suspect, for the sentence.

    Raises:
        UsageError: there is no such alias, or no reason is given.
    """
    why = checked_reason(reason)
    at = str(provenance.get("finished", ""))
    if {one.checkpoint_id for one in registry.holds(store, _named(store, model, alias)[0])} >= checkpoints.keys():
        return None

    def added(holds: Holds, by: str) -> tuple[Holds, str]:
        for checkpoint, version in checkpoints.items():
            holds = with_hold(
                holds,
                Hold(checkpoint_id=checkpoint, version=version, by=by, at=at, reason=why, made_with=made_with),
            )
        what = f"version{'' if len(checkpoints) == 1 else 's'} {', '.join(map(str, sorted(checkpoints.values())))}"
        return holds, f'{what} made with {made_with} put on hold by {by}: "{why}"'

    return _stay(store, model, alias, provenance, added)


def _stay(
    store: Store,
    model: str,
    alias: str,
    provenance: dict[str, object],
    decide: Callable[[Holds, str], tuple[Holds, str]],
) -> Receipt:
    """Change the holds of an alias that stays where it is; its receipt has the sentence that `decide` returns."""
    while True:
        current, version = _named(store, model, alias)
        held, sentence = decide(registry.holds(store, current), str(provenance.get("actor") or "someone"))
        stays = registry.model_version(store, Ref.model_validate(current.value["model_version"]))
        receipt = Receipt(
            decision="unchanged",
            model=model,
            alias=alias,
            version=version,
            previous=version,
            candidate=stays.ref,
            evaluation=stays.evaluation,
            champion=stays.ref,
            sentence=f"{model}@{alias} stays version {version}; {sentence}",
        )
        try:
            return registry.move_alias(store, current, stays, receipt, provenance, held)
        except PointerMoved:
            continue


def checked_reason(reason: str, option: str = "--reason") -> str:
    """A reason in its stored form, on one line; UsageError if it is empty, too long or not printable."""
    line = " ".join(reason.split())
    if wrong := next((one for one in line if not one.isprintable()), None):
        raise UsageError(f"{option}: {wrong!a} is not printable.", remedy="Leave that character out.")
    if not line or len(line) > MOST_REASON:
        raise UsageError(
            f"{option}: {len(line)} characters were given.", remedy=f"Give 1 to {MOST_REASON} printable characters."
        )
    return line


def checked_evidence(evidence: Sequence[str]) -> list[str]:
    """The evidence that a person names, each in its stored form; UsageError as for a reason, and for too many."""
    if len(evidence) > MOST_EVIDENCE:
        raise UsageError(
            f"--evidence was given {len(evidence)} times.", remedy=f"Give it {MOST_EVIDENCE} times at most."
        )
    return [checked_reason(one, "--evidence") for one in evidence]


def hold_of(holds: Holds, checkpoint_id: str) -> Hold | None:
    """The hold of a checkpoint, if it has one."""
    return next((one for one in holds if one.checkpoint_id == checkpoint_id), None)


def on_hold(model: str, alias: str, hold: Hold, stays: str) -> OnHold:
    """The error of a run whose candidate is on hold.

    Args:
        stays: what did not happen then, as the end of a sentence.
    """
    command = f"trainwright release {model}@{alias} {hold.version} --reason WHY"
    return OnHold(
        f"Not promoted: this checkpoint is on hold, because {hold.sentence}; {stays}.",
        remedy=f"Lift the hold with `{command}` and run again, or train other weights.",
        details={"held": hold.to_json()},
    )


def _went_back(model: str, alias: str, left: ModelVersion, back: ModelVersion, incident: Incident) -> Receipt:
    why = f': "{incident.reason}"' if incident.reason else ""
    went = "went back" if back.version < left.version else "went forward"
    return Receipt(
        decision="promoted",
        model=model,
        alias=alias,
        version=back.version,
        previous=left.version,
        candidate=back.ref,
        evaluation=back.evaluation,
        champion=left.ref,
        sentence=f"{model}@{alias} {went} from version {left.version} to version {back.version}{why}",
        incident=incident,
    )


def _named(store: Store, model: str, alias: str) -> tuple[Versioned, int]:
    found = registry.read_alias(store, model, alias)
    if found is None:
        raise UsageError(
            f"The model {model} has no alias {alias}.", remedy="`trainwright status` lists models and aliases."
        )
    return found


def _previous(store: Store, model: str, alias: str, version: int, holds: Holds) -> int | None:
    """The version promoted before `version`, without versions on hold, so that going back twice passes two versions."""
    before: dict[int | None, int | None] = {}
    for receipt in registry.history(store, model, alias):
        before.setdefault(receipt.version, receipt.previous)
    on_hold = []
    while (candidate := before.get(version)) is not None:
        if all(one.checkpoint_id != existing_version(store, model, candidate).checkpoint.ref.id for one in holds):
            return candidate
        on_hold.append(candidate)
        version = candidate
    if on_hold:
        numbers = ", ".join(map(str, on_hold))
        raise UsageError(
            f"{model}@{alias} has no version to go back to that is not on hold (on hold: {numbers}).",
            remedy=f"To go back to one of these despite its hold, name it: --to {on_hold[0]}.",
        )
    return None


def _chosen(store: Store, model: str, alias: str, which: int | str | None, holds: Holds) -> Hold:
    """The hold that a person names; else UsageError with a list of the holds."""
    match which:
        case None:
            chosen = list(holds)
        case int():
            of = [one for one in holds if one.version == which]
            ids = {existing_version(store, model, which).checkpoint.ref.id} if not of else set()
            chosen = of or [one for one in holds if one.checkpoint_id in ids]
        case str():
            chosen = [one for one in holds if one.checkpoint_id.startswith(which)]
    if len(chosen) == 1:
        return chosen[0]
    there = "; ".join(f"version {one.version} (checkpoint {one.checkpoint_id[:12]})" for one in holds)
    if not holds:
        raise UsageError(f"Nothing is on hold for {model}@{alias}.", remedy="`trainwright show` lists the holds.")
    if chosen or which is None:
        raise UsageError(f"{model}@{alias} has more than one hold: {there}.", remedy="Name the version.")
    raise UsageError(f"{which} is not on hold for {model}@{alias}; on hold: {there}.", remedy="Name one of these.")


Moves = Sequence[tuple[Receipt, Mapping[str, object]]]


def read_again(store: Store, version: ModelVersion, *, stays: str) -> tuple[int, int]:
    """Number and bytes of the files of a version's checkpoint; CorruptError if one is not as sealed, or all are gone.

    Args:
        stays: what did not happen then, as the end of a sentence.
    """
    ref = version.checkpoint.ref
    try:
        files = store.verify(ref).files
    except FileNotFoundError as error:
        raise CorruptError(
            f"The checkpoint {ref.uri} of version {version.version} is missing; {stays}.",
            remedy="Go back to another version with --to.",
            details={"file": ref.uri},
        ) from error
    return len(files), sum(one.bytes for one in files)


def noted(store: Store, left: ModelVersion, back: ModelVersion, moves: Moves, read: tuple[int, int]) -> Incident:
    """The note of a rollback, without a person's words.

    Args:
        moves: of the alias so far, oldest first.
        read: number and bytes of the files of `back` that were read again.
    """
    files, num_bytes = read
    left_facts, back_facts = _facts(store, left, moves), _facts(store, back, moves)
    return Incident(left=left_facts, back=back_facts, checked_files=files, checked_bytes=num_bytes)


def _facts(store: Store, version: ModelVersion, moves: Moves) -> VersionFacts:
    came = [(one, about) for one, about in moves if one.version == version.version and one.previous != one.version]
    about = came[-1][1] if came else {}
    promoted = [one for one, _ in came if not is_rollback(one)]
    try:
        metrics = read_handoff(store, version.evaluation, Evaluation).metrics
    except CorruptError:  # a rollback must not wait until old scores can be read
        metrics = {}
    return VersionFacts(
        version=version.version,
        since=str(about.get("finished") or about.get("started") or ""),
        by=str(about.get("actor") or ""),
        run_id=str(about.get("run_id") or ""),
        metrics={name: one.value for name, one in metrics.items()},
        gates=[gate.sentence for gate in promoted[-1].gates] if promoted else [],
    )
