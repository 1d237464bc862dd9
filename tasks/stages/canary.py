"""`promote.canary`: a version that each run scores beside the champion on fresh rows, until it is promoted or ended.

Each run first handles a standing canary (`decide_standing`): it scores it, and promotes it, withdraws it, or lets it
continue.
A run considers its own candidate only if no canary stands, or if it was withdrawn: one that meets all gates then stands
under the alias `canary` (`stand`). `withdraw` is a person's decision to take a canary back.

The end of a canary is in the store before an alias moves, so if a run is killed here, the next run does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from data_contracts.alias_moves import (
    ALIAS,
    CanaryAsk,
    CanaryEnd,
    CanaryNote,
    CanaryStatus,
    CanaryTerms,
    Hold,
    ObservationBatch,
    Outcome,
)
from data_contracts.approvals import Question, meaning
from data_contracts.canonical import readable
from data_contracts.errors import ApprovalPending, ApprovalRefused, CorruptError, GateNotMet, UsageError
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, ModelVersion, Receipt, Ref
from data_contracts.pipeline_spec.contract import length_of
from data_contracts.pipeline_spec.promote import CanarySpec
from infra import approvals
from infra.approvals import stored_answer
from infra.audit import now
from infra.models import canaries, registry
from infra.models.canaries import Canary
from infra.records.handoffs import read_handoff
from infra.records.receipts import chain, has_ended, read_receipt, with_hold, without_hold
from infra.store import PointerMoved, Store, Versioned, layout
from tasks.run.run import Run, RunInputs
from tasks.run.spec_check import why_no_fresh_rows
from tasks.stages import approval
from tasks.stages.approval import signing_key
from tasks.stages.canary_observations import (
    CanaryObservations,
    check_rows,
    gate_result,
    metric_digest,
    observe,
    status_sentence,
    stored_status,
)
from tasks.stages.rollback import checked_reason, hold_of, on_hold
from tasks.stages.stage import StageOutcome

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey

log = logging.getLogger("trainwright")


def check_start(run: Run, checkpoint: Checkpoint, evaluation: Evaluation, force: str | None, stays: str) -> Hold | None:
    """The hold of a checkpoint that was withdrawn as a canary and is forced to stand again; None if it has none.

    Raises:
        UsageError: the canary's metric has no value for each row.
        OnHold: the checkpoint was withdrawn, and nobody released it.
    """
    wanted = run.spec.promote.canary
    assert wanted is not None
    check_rows(evaluation, wanted.metric)
    found = registry.read_alias(run.store, run.spec.model_name, ALIAS)
    held = registry.holds(run.store, found and found[0])
    hold = hold_of(held, checkpoint.ref.id)
    if hold is not None and force is None:
        raise on_hold(run.spec.model_name, ALIAS, hold, stays)
    return hold


def stand(
    run: Run,
    champion: ModelVersion,
    version: ModelVersion,
    receipt: Receipt,
    provenance: dict[str, object],
    more: str = "",
) -> StageOutcome[Receipt]:
    """Let a version stand as the canary of a champion.

    Args:
        receipt: as it would be if the version were promoted now.
        more: what else to say about the candidate, as the end of a sentence.

    Raises:
        PointerMoved: another process moved the alias, or a canary stands already.
    """
    store, model, wanted = run.store, run.spec.model_name, run.spec.promote.canary
    assert wanted is not None
    found = registry.read_alias(store, model, ALIAS)
    current = None if found is None else found[0]
    if current is not None and not has_ended(current):
        raise PointerMoved(layout.alias(model, ALIAS), current)
    terms = _terms(run, wanted, champion)
    stands = receipt.model_copy(
        update={
            "decision": "canary",
            "alias": ALIAS,
            "previous": None,
            "sentence": f"{model}@{ALIAS} is version {version.version} until {readable(terms.until)}: "
            f"{wanted.min_rows:,} fresh rows or more must show that it can replace {model}@{terms.alias}, which stays "
            f"at version {champion.version}{more}",
            "terms": terms,
        }
    )
    kept = without_hold(registry.holds(store, current), version.checkpoint.ref.id)
    made = registry.move_alias(store, current, version, stands, provenance, kept, signing_key(run))
    return StageOutcome(made, "ran", made.sentence, version.ref)


def _terms(run: Run, spec: CanarySpec, champion: ModelVersion) -> CanaryTerms:
    """What is agreed now."""
    since = now()
    until = (datetime.fromisoformat(since) + length_of(spec.within)).isoformat(timespec="seconds")
    name = spec.metric.rpartition("/")[2]
    return CanaryTerms(
        alias=run.spec.promote.alias,
        against=champion.version,
        metric=spec.metric,
        mode=run.spec.evaluate.metrics[name].mode,
        metric_digest=metric_digest(run, spec.metric),
        bound=spec.bound,
        confidence=spec.confidence,
        min_rows=spec.min_rows,
        since=since,
        until=until,
    )


def stood(run: Run) -> StageOutcome[Receipt] | None:
    """The receipt by which this run let its candidate stand before it was cut off; None if it did not."""
    found = registry.read_alias(run.store, run.spec.model_name, ALIAS)
    if found is None:
        return None
    receipt = registry.receipt_of_run(run.store, found[0], run.run_id, run.resolved.started)
    if receipt is None or receipt.decision != "canary":
        return None
    return StageOutcome(receipt, "ran", receipt.sentence, receipt.candidate)


def ended_by(run: RunInputs) -> Receipt | None:
    """The receipt of the end of a canary that this run ended; None if it ended none."""
    found = registry.read_alias(run.store, run.spec.model_name, ALIAS)
    newest = None if found is None else Ref.model_validate(found[0].value["receipt"])
    for manifest in chain(run.store, newest):
        if manifest.provenance.get("run_id") != run.run_id:
            return None
        receipt = read_receipt(run.store, manifest)
        if receipt.decision == "ended":
            return receipt
    return None


def outlook(run: Run) -> str:
    """What a plan says of a canary, as the end of a sentence; "" without `promote.canary`."""
    wanted, model = run.spec.promote.canary, run.spec.model_name
    if wanted is None or registry.read_alias(run.store, model, run.spec.promote.alias) is None:
        return ""
    canary, why = canaries.standing_canary(run.store, model), why_no_fresh_rows(run.spec)
    more = "" if why is None else f". {why.removesuffix('.')}"
    if canary is not None:
        return f"; first the fresh rows are scored for version {canary.version.version}, which stands as canary{more}"
    return f"; then the candidate stands as canary, for {wanted.within} at most{more}"


# How a run ends, or None if its own candidate is to be considered; and how a canary ended, as a sentence, or "".
Settled = tuple[StageOutcome[Receipt] | None, str]


@dataclass(frozen=True)
class Champion:
    """The version that a canary is compared with, and its alias as it was read."""

    pointer: Versioned
    version: ModelVersion

    @property
    def number(self) -> int:
        """The version's number."""
        return self.version.version


def decide_standing(run: Run, dataset: Dataset | None) -> Settled:
    """Score the standing canary, and end it if the rows, its window or a person decide so.

    Raises:
        PointerMoved: another process moved an alias; call it again.
        GateNotMet: a canary that challenges another alias of this model stands.
        ApprovalPending: the canary is to be promoted, and nobody has answered yet.
        ApprovalRefused: a person refused that, or nobody answered in time; the canary is withdrawn.
    """
    store, model, alias = run.store, run.spec.model_name, run.spec.promote.alias
    canary, found = canaries.standing_canary(store, model), registry.read_alias(store, model, alias)
    if canary is None:
        return None, ""
    if canary.terms.alias != alias:
        return _of_another_alias(run, canary)
    end = canaries.end_of(store, canary)  # of a run that was stopped before the aliases followed
    if end is not None or found is None:
        return (None, "") if end is None else _settle_ended(run, canary, end)
    champion = Champion(found[0], registry.model_version(store, Ref.model_validate(found[0].value["model_version"])))
    ask = canaries.ask_of(store, canary, champion.number)
    if over := _over(run, canary, champion, ask):
        return _settle_ended(run, canary, _end(run, canary, *over, stored_status(store, canary, champion.number)))
    if ask is not None:
        return _approved(run, canary, champion, ask)
    observed = observe(run, canary, champion.version, dataset)
    # Scoring takes a while, and readers say that a canary is withdrawn from the end of its window on.
    if over := _over(run, canary, champion, ask):
        return _settle_ended(run, canary, _end(run, canary, *over, observed.status))
    if observed.status.verdict == "worse":
        sentence = status_sentence(canary.terms, observed.status)
        return _settle_ended(run, canary, _end(run, canary, "worse", sentence, observed.status))
    if observed.status.verdict == "better":
        return _better(run, canary, champion, observed)
    anew = ""
    if champion.number != canary.terms.against:
        anew = f"{canary.name} is version {champion.number} now, so the tally began anew: "
    done = _stands(run, canary, champion, f"{anew}{so_far(canary.terms, observed.status)}")
    gates = [gate_result(canary, observed)] if observed.status.rows else []
    return replace(done, handoff=done.handoff.model_copy(update={"gates": gates})), ""


def _of_another_alias(run: Run, canary: Canary) -> Settled:
    """Refuse this run's candidate while the canary stands; end it if its window is over, as its own runs may not."""
    store, terms = run.store, canary.terms
    end, found = canaries.end_of(store, canary), registry.read_alias(store, canary.model, terms.alias)
    champion = terms.against if found is None else found[1]
    if end is None and canaries.why_over(store, canary, champion):
        rows = stored_status(store, canary, champion)
        reason = f"its window ended at {readable(terms.until)} with {so_far(terms, rows)}"
        end = _end(run, canary, "expired", reason, rows)
    # A promotion needs the approval that the other alias asks for, which this run does not know.
    if end is not None and end.outcome != "promoted":
        return _settle_ended(run, canary, end)
    raise GateNotMet(
        f"Not promoted: version {canary.version.version} stands under {canary.model}@{ALIAS} for {canary.name}, and "
        "one canary of a model stands at a time.",
        remedy=f"Wait until it ends, or take it back: `trainwright canary {canary.model} --withdraw --reason WHY`.",
    )


def tidy(run: Run) -> bool:
    """Let the aliases follow an end that a stopped run left; returns whether there was one. PointerMoved."""
    canary = canaries.standing_canary(run.store, run.spec.model_name)
    end = None if canary is None else canaries.end_of(run.store, canary)
    if canary is None or end is None:
        return False
    _follow(run, canary, end)
    return True


def so_far(terms: CanaryTerms, status: CanaryStatus) -> str:
    """What the observation batches show and what is still missing, as the end of a sentence."""
    if status.rows < terms.min_rows:
        return f"{status.rows:,} of {terms.min_rows:,} fresh rows against version {status.champion}"
    if status.verdict != "open":  # they decided when the window was over already
        return status_sentence(terms, status)
    to_go = f"; about {status.rows_to_go:,} more rows would decide" if status.rows_to_go else ""
    return f"{status_sentence(terms, status)}, which does not decide yet{to_go}"


def _over(run: Run, canary: Canary, champion: Champion, ask: CanaryAsk | None) -> tuple[Outcome, str] | None:
    """Why a canary ends whatever its scores are; None if it does not."""
    version, terms, store = canary.version, canary.terms, run.store
    if version.checkpoint.ref.id == champion.version.checkpoint.ref.id:
        return "withdrawn", f"{canary.name} was moved to its checkpoint already (version {champion.number})"
    held = registry.holds(store, champion.pointer)
    hold = hold_of(held, version.checkpoint.ref.id)
    if hold is not None and not is_forced(canary, hold):
        return "held", f"its checkpoint is on hold for {canary.name}, because {hold.sentence}"
    lacks = [one for one in run.spec.promote.require if one not in ("approved", *canary.receipt.required)]
    if lacks:
        return "withdrawn", f"promote.require asks for {', '.join(lacks)}, which was not checked when it began"
    question = None if ask is None else _question(run, ask, champion)
    if question is not None:
        at = approvals.time_of(store)
        means = meaning(question, approvals.answer_to(store, question, at), at)
        return None if means.standing != "refused" or question.run_id == run.run_id else ("refused", means.reason)
    if terms.is_over(now()) and (ask is None or ask.run_id != run.run_id):
        rows = so_far(terms, stored_status(store, canary, champion.number))
        return "expired", f"its window ended at {readable(terms.until)} with {rows}"
    return None


def _question(run: Run, ask: CanaryAsk, champion: Champion) -> Question | None:
    """The question whether a canary may replace the champion; None if it was not asked yet."""
    found = approvals.latest_question(run.store, ask.run_id)
    return found if found is not None and found.champion == champion.version.ref else None


def _better(run: Run, canary: Canary, champion: Champion, observed: CanaryObservations) -> Settled:
    """Promote a canary, or ask for it."""
    gate = gate_result(canary, observed)
    if approval.is_asked_for(run):
        wanted = CanaryAsk(run_id=run.run_id, at=now(), status=observed.status, gate=gate)
        return _approved(run, canary, champion, canaries.ask(run.store, canary, champion.number, wanted))
    return _settle_promoted(run, canary, champion, CanaryAsk(run_id="", at=now(), status=observed.status, gate=gate))


def _approved(run: Run, canary: Canary, champion: Champion, ask: CanaryAsk) -> Settled:
    """Promote a canary if a person approves; a run that does not ask itself lets it stand until there is an answer."""
    if ask.run_id != run.run_id and approval.is_asked_for(run):
        question = _question(run, ask, champion)
        if question is None:
            waits = f"`trainwright resume {ask.run_id}` asks for the approval that its promotion needs"
            return _stands(run, canary, champion, waits), ""
        if stored_answer(run.store, question) is None:
            waits = f"its promotion waits for an answer to the run {ask.run_id} before {readable(question.deadline)}"
            return _stands(run, canary, champion, waits), ""
    evaluation = read_handoff(run.store, canary.version.evaluation, Evaluation)
    checkpoint, gates, state = canary.version.checkpoint, [ask.gate], champion.pointer.value["receipt"]["seal"]
    try:
        by = approval.approved(run, checkpoint, evaluation, gates, champion.version, state, ask.run_id)
    except ApprovalRefused as error:
        reason = error.message.removeprefix("Not promoted: ").partition(f"; {canary.name}")[0]
        _settle_ended(run, canary, _end(run, canary, "refused", reason, ask.status))
        raise
    return _settle_promoted(run, canary, champion, ask, by)


def _settle_promoted(
    run: Run, canary: Canary, champion: Champion, ask: CanaryAsk, by: approval.Approval | None = None
) -> Settled:
    end = CanaryEnd(
        outcome="promoted",
        reason=status_sentence(canary.terms, ask.status),
        by=run.resolved.actor,
        at=now(),
        run_id=run.run_id,
        champion_receipt=champion.pointer.value["receipt"],
        status=ask.status,
        gate=ask.gate,
        approval=by,
    )
    return _settle_ended(run, canary, canaries.end(run.store, canary, end))


def _end(run: Run, canary: Canary, outcome: Outcome, reason: str, status: CanaryStatus) -> CanaryEnd:
    by = run.resolved.actor
    end = CanaryEnd(outcome=outcome, reason=reason, by=by, at=now(), run_id=run.run_id, status=status)
    return canaries.end(run.store, canary, end)


def _settle_ended(run: Run, canary: Canary, end: CanaryEnd) -> Settled:
    receipt = _follow(run, canary, end)
    if receipt is not None:
        return StageOutcome(receipt, "ran", receipt.sentence, canary.version.ref), ""
    newest = registry.newest_move(run.store, canary.model, ALIAS)
    note = None if newest is None else newest[0].canary
    # The receipt also says why a canary was not promoted that should have been.
    told = newest is not None and newest[0].decision == "ended" and note is not None and note.seal == canary.seal
    sentence = newest[0].sentence if newest is not None and told else canaries.ending(canary, end)
    log.warning("%s", sentence)
    return None, sentence


def _follow(run: Run, canary: Canary, end: CanaryEnd) -> Receipt | None:
    """Let the aliases follow an end. A writer of the store may have forged the end, as well as the canary."""
    refused = ""
    if end.outcome == "promoted" and is_to_move(run.store, canary, end) and (refused := _why_not(run, canary, end)):
        log.warning("%s@%s: version %s is not promoted: %s", canary.model, ALIAS, canary.version.version, refused)
    return follow(run.store, canary, end, Mover(run.provenance(), signing_key(run)), refused)


def _why_not(run: Run, canary: Canary, end: CanaryEnd) -> str:
    """Why the champion's alias must not move whatever the end says, as the end of a sentence; "" if it may."""
    key = signing_key(run)
    if key is not None:
        from infra.signing.signatures import verify_receipt

        assert canary.receipt.ref is not None
        try:
            verify_receipt(run.store, run.store.manifest(canary.receipt.ref), [key.public])
        except (CorruptError, FileNotFoundError) as error:
            log.warning("%s", error)
            return "the release key did not let it stand"
    return "" if _is_approved(run, canary, end) else "the approval that this needs is not in the store"


def _is_approved(run: Run, canary: Canary, end: CanaryEnd) -> bool:
    if not approval.is_asked_for(run):
        return True
    found = registry.read_alias(run.store, canary.model, canary.terms.alias)
    if end.approval is None or end.gate is None or found is None:
        return False
    champion = registry.model_version(run.store, Ref.model_validate(found[0].value["model_version"]))
    evaluation = read_handoff(run.store, canary.version.evaluation, Evaluation)
    checkpoint, state, asker = canary.version.checkpoint, found[0].value["receipt"]["seal"], end.approval.run_id
    try:
        by = approval.approved(run, checkpoint, evaluation, [end.gate], champion, state, asker)
    except (ApprovalPending, ApprovalRefused):
        return False
    return by == end.approval


def _stands(run: Run, canary: Canary, champion: Champion, why: str) -> StageOutcome[Receipt]:
    """The answer of a run whose own candidate waits for a canary; no receipt is written."""
    number = canary.version.version
    receipt = canary.receipt.model_copy(
        update={
            "ref": None,
            "previous": number,
            "gates": [],
            "champion": champion.version.ref,
            "sentence": f"{canary.model}@{ALIAS} stays version {number} until {readable(canary.terms.until)}: {why}; "
            f"{canary.name} stays at version {champion.number}, and this run's candidate was not considered",
        }
    )
    return StageOutcome(receipt, "ran", receipt.sentence, canary.version.ref)


@dataclass(frozen=True)
class Mover:
    """Who moves.

    Attributes:
        about: the provenance of the receipts.
        key: signs them; None for the key of the environment, if there is one.
    """

    about: Mapping[str, object]
    key: SigningKey | None = None


def note(
    canary: Canary,
    outcome: Outcome,
    reason: str,
    status: CanaryStatus | None = None,
    batches: list[ObservationBatch] | None = None,
) -> CanaryNote:
    """What receipts keep of a canary."""
    return CanaryNote(
        seal=canary.seal,
        version=canary.version.version,
        outcome=outcome,
        reason=reason,
        terms=canary.terms,
        status=status,
        batches=batches or [],
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


def promotion_of(store: Store, canary: Canary, since: dict[str, object] | None = None) -> Receipt | None:
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
    return hold is not None and force is not None and force.hold_reason == hold.sentence


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
    hold = hold_of(held, version.checkpoint.ref.id)
    try:
        batches = canaries.observation_batches(store, canary, previous)
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
        canary=note(canary, end.outcome, end.reason, end.status, batches),
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
        canary=note(canary, "withdrawn" if failed else end.outcome, end.reason, end.status),
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
    store: Store, canary: Canary, by: str, reason: str, status: CanaryStatus | None, mover: Mover
) -> CanaryEnd:
    """Take a canary back; returns the end that counts, which may be an earlier one.

    UsageError if it is being promoted, which only a run completes: it checks the approval. PointerMoved as of `follow`.
    """
    wanted = CanaryEnd(
        outcome="withdrawn", reason=f'{by} took it back: "{reason}"', by=by, at=now(), run_id="", status=status
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


def _parents(about: Mapping[str, object], *refs: Ref | None) -> dict[str, object]:
    return {**about, "parents": [one.to_json() for one in refs if one is not None]}


def withdraw(store: Store, model: str, reason: str, provenance: Mapping[str, object]) -> Receipt:
    """Take a model's canary back, or remove from the alias `canary` what a promotion put there.

    Returns:
        The receipt of the alias's end, which says how the canary ended: perhaps another process was first.

    Raises:
        UsageError: there is no canary, or no reason is given.
    """
    why, mover = checked_reason(reason), Mover(provenance)
    while True:
        found = registry.read_alias(store, model, ALIAS)
        if found is None or has_ended(found[0]):
            raise UsageError(f"{model} has no canary.", remedy="`trainwright status` lists the aliases.")
        try:
            if not canaries.is_of_canaries(store, found[0]):
                return free(store, model, found[0], why, mover)
            canary = canaries.standing_canary(store, model)
            if canary is not None:
                champion = registry.read_alias(store, model, canary.terms.alias)
                against = canary.terms.against if champion is None else champion[1]
                by = str(provenance.get("actor") or "someone")
                end_by_withdrawal(store, canary, by, why, _known_status(store, canary, against), mover)
                return registry.history(store, model, ALIAS)[-1]
        except PointerMoved:
            continue


def _known_status(store: Store, canary: Canary, champion: int) -> CanaryStatus | None:
    """What the batches say; None if one is damaged or missing, which must not keep a canary from being taken back."""
    try:
        return stored_status(store, canary, champion)
    except CorruptError as error:
        log.warning("what the rows said is not kept: %s", error.message)
        return None
