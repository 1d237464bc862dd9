"""`promote.canary`: scores the version that stands beside the champion on fresh rows, and ends it by what they show.

Each run first handles a standing canary: it promotes it, withdraws it, or lets it continue. A run considers its own
candidate (`canary_start`) only if no canary stands, or if it was withdrawn. `canary_moves` moves the aliases.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from data_contracts.alias_moves import ALIAS, CanaryAsk, CanaryEnd, CanaryTerms, Outcome, Standing
from data_contracts.approvals import Question, meaning
from data_contracts.errors import ApprovalPending, ApprovalRefused, CorruptError, GateNotMet
from data_contracts.handoffs import Dataset, Evaluation, ModelVersion, Receipt, Ref
from data_contracts.times import readable
from infra import approvals
from infra.approvals import stored_answer
from infra.audit import now
from infra.models import canaries, registry
from infra.models.canaries import Canary
from infra.records.handoffs import read_handoff
from infra.store import Versioned
from tasks.run.run import Run
from tasks.stages.canary.canary_moves import Mover, follow, is_forced, is_to_move
from tasks.stages.canary.canary_tally import Tallied, gate_result, standing_sentence, stored_standing, tally
from tasks.stages.decisions import approval
from tasks.stages.decisions.requirements import signing_key
from tasks.stages.stage import StageOutcome

log = logging.getLogger("trainwright")
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


def settle(run: Run, dataset: Dataset | None) -> Settled:
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
        return (None, "") if end is None else _ended(run, canary, end)
    champion = Champion(found[0], registry.model_version(store, Ref.model_validate(found[0].value["model_version"])))
    ask = canaries.ask_of(store, canary, champion.number)
    if over := _over(run, canary, champion, ask):
        return _ended(run, canary, _end(run, canary, *over, stored_standing(store, canary, champion.number)))
    if ask is not None:
        return _approved(run, canary, champion, ask)
    tallied = tally(run, canary, champion.version, dataset)
    # Scoring takes a while, and readers say that a canary is withdrawn from the end of its window on.
    if over := _over(run, canary, champion, ask):
        return _ended(run, canary, _end(run, canary, *over, tallied.standing))
    if tallied.standing.verdict == "worse":
        sentence = standing_sentence(canary.terms, tallied.standing)
        return _ended(run, canary, _end(run, canary, "worse", sentence, tallied.standing))
    if tallied.standing.verdict == "better":
        return _better(run, canary, champion, tallied)
    anew = "" if champion.number == canary.terms.against else _anew(canary, champion)
    done = _stands(run, canary, champion, f"{anew}{so_far(canary.terms, tallied.standing)}")
    gates = [gate_result(canary, tallied)] if tallied.standing.rows else []
    return replace(done, handoff=done.handoff.model_copy(update={"gates": gates})), ""


def _of_another_alias(run: Run, canary: Canary) -> Settled:
    """Refuse this run's candidate while the canary stands; end it if its window is over, as its own runs may not."""
    store, terms = run.store, canary.terms
    end, found = canaries.end_of(store, canary), registry.read_alias(store, canary.model, terms.alias)
    champion = terms.against if found is None else found[1]
    if end is None and canaries.why_over(store, canary, champion):
        rows = stored_standing(store, canary, champion)
        reason = f"its window ended at {readable(terms.until)} with {so_far(terms, rows)}"
        end = _end(run, canary, "expired", reason, rows)
    # A promotion needs the approval that the other alias asks for, which this run does not know.
    if end is not None and end.outcome != "promoted":
        return _ended(run, canary, end)
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


def so_far(terms: CanaryTerms, found: Standing) -> str:
    """What the tallies show and what is still missing, as the end of a sentence."""
    if found.rows < terms.min_rows:
        return f"{found.rows:,} of {terms.min_rows:,} fresh rows against version {found.champion}"
    if found.verdict != "open":  # they decided when the window was over already
        return standing_sentence(terms, found)
    to_go = f"; about {found.rows_to_go:,} more rows would decide" if found.rows_to_go else ""
    return f"{standing_sentence(terms, found)}, which does not decide yet{to_go}"


def _anew(canary: Canary, champion: Champion) -> str:
    return f"{canary.name} is version {champion.number} now, so the tally began anew: "


def _over(run: Run, canary: Canary, champion: Champion, ask: CanaryAsk | None) -> tuple[Outcome, str] | None:
    """Why a canary ends whatever its scores are; None if it does not."""
    version, terms, store = canary.version, canary.terms, run.store
    if version.checkpoint.ref.id == champion.version.checkpoint.ref.id:
        return "withdrawn", f"{canary.name} was moved to its checkpoint already (version {champion.number})"
    held = registry.holds(store, champion.pointer)
    hold = next((one for one in held if one.checkpoint_id == version.checkpoint.ref.id), None)
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
        rows = so_far(terms, stored_standing(store, canary, champion.number))
        return "expired", f"its window ended at {readable(terms.until)} with {rows}"
    return None


def _question(run: Run, ask: CanaryAsk, champion: Champion) -> Question | None:
    """The question whether a canary may replace the champion; None if it was not asked yet."""
    found = approvals.latest_question(run.store, ask.run_id)
    return found if found is not None and found.champion == champion.version.ref else None


def _better(run: Run, canary: Canary, champion: Champion, tallied: Tallied) -> Settled:
    """Promote a canary, or ask for it."""
    gate = gate_result(canary, tallied)
    if approval.is_asked_for(run):
        wanted = CanaryAsk(run_id=run.run_id, at=now(), standing=tallied.standing, gate=gate)
        return _approved(run, canary, champion, canaries.ask(run.store, canary, champion.number, wanted))
    return _promoted(run, canary, champion, CanaryAsk(run_id="", at=now(), standing=tallied.standing, gate=gate))


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
        _ended(run, canary, _end(run, canary, "refused", reason, ask.standing))
        raise
    return _promoted(run, canary, champion, ask, by)


def _promoted(
    run: Run, canary: Canary, champion: Champion, ask: CanaryAsk, by: approval.Approval | None = None
) -> Settled:
    end = CanaryEnd(
        outcome="promoted",
        reason=standing_sentence(canary.terms, ask.standing),
        by=run.resolved.actor,
        at=now(),
        run_id=run.run_id,
        champion_receipt=champion.pointer.value["receipt"],
        standing=ask.standing,
        gate=ask.gate,
        approval=by,
    )
    return _ended(run, canary, canaries.end(run.store, canary, end))


def _end(run: Run, canary: Canary, outcome: Outcome, reason: str, standing: Standing) -> CanaryEnd:
    by = run.resolved.actor
    end = CanaryEnd(outcome=outcome, reason=reason, by=by, at=now(), run_id=run.run_id, standing=standing)
    return canaries.end(run.store, canary, end)


def _ended(run: Run, canary: Canary, end: CanaryEnd) -> Settled:
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
