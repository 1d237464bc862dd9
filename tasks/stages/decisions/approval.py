"""Asks a person whether a candidate may be promoted, reads the answer, and asks again if the comparison has changed.

A question is about one comparison in one state of its alias. If the alias was moved since, a hold was lifted, or the
gates have another result, the answer does not apply any more, and a new question is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from data_contracts.alias_moves import Approval
from data_contracts.approvals import Answer, Question, is_late, meaning
from data_contracts.errors import ApprovalPending, ApprovalRefused, CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, Evaluation, GateResult, ModelVersion
from data_contracts.pipeline_spec.contract import length_of
from data_contracts.times import readable
from infra import approvals
from infra.approvals import Approvers
from infra.audit import now
from infra.models import canaries
from infra.store import layout
from tasks.run.run import Run
from tasks.stages.decisions.approvers import approvers_of, named_approvers, standing_protection

log = logging.getLogger("trainwright")
# For a run that no person began, nobody is asked again after a refusal in the same state of the alias.
UNATTENDED = ("schedule", "ci", "automation")


def is_asked_for(run: Run) -> bool:
    """Whether a promotion of this run needs an approval, by its spec or by the alias's protection."""
    promote = run.spec.promote
    asked = promote.approval == "manual" or "approved" in promote.require or promote.approvers
    return bool(asked) or standing_protection(run)[0] is not None


def refuse_alone(run: Run) -> None:
    """UsageError if an approval is needed, and this is a stage command, which nobody could continue."""
    if not run.recorded and is_asked_for(run):
        name = f"{run.spec.model_name}@{run.spec.promote.alias}"
        raise UsageError(
            f"promote: {name} needs an approval, and the stage command leaves no run that could wait for it.",
            remedy="Use `trainwright run SPEC`, which ends waiting and continues once it is answered.",
        )


def approved(
    run: Run,
    checkpoint: Checkpoint,
    evaluation: Evaluation,
    gates: Sequence[GateResult],
    champion: ModelVersion | None,
    state: str,
    asker: str | None = None,
) -> Approval | None:
    """The approval of this promotion, which meets its gates; None if none is needed.

    Args:
        state: seal of the alias's newest receipt; "" before the first.
        asker: the run whose question it is; default: this run.

    Raises:
        ApprovalPending: nobody has answered yet. The question is in the store.
        ApprovalRefused: a person refused, nobody answered in time, or the answer is not signed as it must be.
    """
    if not is_asked_for(run):
        return None
    known = approvers_of(run)  # first: nobody is asked whose answer could not count
    asks = partial(_question, run, (checkpoint, evaluation), gates, champion, state, run_id=asker)
    question = approvals.latest_question(run.store, asker or run.run_id)
    while True:
        if question is None:
            question = _ask(run, asks(0))
        _refuse_foreign(run, question)
        at = approvals.time_of(run.store)
        answer = approvals.answer_to(run.store, question, at)
        means = meaning(question, answer, at)
        if means.standing == "refused":
            raise _refused(question, means.reason)
        if _is_the_same(question, asks(question.n)):
            break
        question = _ask(run, asks(question.n + 1))
    if answer is None:
        raise _waits(question, "--key FILE " if known.keys else "")
    if wrong := known.fault(question, answer):
        raise _refused(question, wrong)
    return _taken(question, answer, known)


def _ask(run: Run, question: Question) -> Question:
    """Ask, unless a person refused the same already and no person began this run."""
    refused = approvals.refused_before(run.store, question) if run.resolved.trigger in UNATTENDED else None
    if refused is None:
        return approvals.ask(run.store, question, _asks_for_canary(run, question))
    earlier, answer = refused
    why = meaning(earlier, answer, now()).reason
    raise _refused(
        question,
        f"{why}, in the run {earlier.run_id}, which had the same checkpoint, champion and gates",
        remedy="Nobody is asked again by a run that no person began. Begin one by hand to ask: `trainwright run SPEC`.",
    )


def _asks_for_canary(run: Run, question: Question) -> str | None:
    """The run that asks whether a standing canary may replace the same champion; None if none does.

    Superseding that question would withdraw the canary. Its fresh rows have shown that it is better, so a candidate of
    a run without `promote.canary` must not end it by asking. The first approved question moves the alias; the other
    question is asked again, because the champion has changed.
    """
    if question.champion_version is None:
        return None
    try:
        canary = canaries.standing_canary(run.store, question.model)
        if canary is None or canary.terms.alias != question.alias:
            return None
        asks = canaries.ask_of(run.store, canary, question.champion_version)
    except (UsageError, CorruptError):  # what is wrong with the canary does not concern this candidate
        return None
    if asks is None or asks.run_id == question.run_id:
        return None
    log.warning(
        "Version %d of %s stands as canary for %s, and the run %s asks about it, too; both questions stay open.",
        canary.version.version, question.model, question.name, asks.run_id,
    )  # fmt: skip
    return asks.run_id


def _is_the_same(asked: Question, now_asked: Question) -> bool:
    """Whether a question is exactly the one that would be asked now; a question of an earlier version has no state."""
    if asked.state is not None and asked.state != now_asked.state:
        return False
    same = (asked.candidate, asked.champion, asked.evaluation) == (
        now_asked.candidate, now_asked.champion, now_asked.evaluation,
    )  # fmt: skip
    return same and asked.about == now_asked.about


def _refuse_foreign(run: Run, question: Question) -> None:
    """CorruptError for a question that this run did not ask: an answer to it, even a signed one, means something else.

    Whoever can write to the store could have a person approve for another alias, whose approvers have the same keys.
    """
    if (question.model, question.alias) != (run.spec.model_name, run.spec.promote.alias):
        path = layout.question(question.run_id, question.n)
        raise CorruptError(
            f"{path} is about {question.name}, which the run {run.run_id} does not promote to.",
            remedy="Find out who changed it, and start a new run.",
            details={"file": path},
        )


def pending(run: Run) -> Question | None:
    """The question that the run waits for; None if it waits for none. Writes nothing."""
    question = approvals.latest_question(run.store, run.run_id)
    if question is None or approvals.stored_answer(run.store, question) is not None:
        return None
    return None if is_late(question, now()) else question


def _question(
    run: Run,
    candidate: tuple[Checkpoint, Evaluation],
    gates: Sequence[GateResult],
    champion: ModelVersion | None,
    state: str,
    n: int,
    run_id: str | None = None,
) -> Question:
    """Question `n` of the run `run_id` (default: this run), as it would be asked now."""
    checkpoint, evaluation = candidate
    asked = approvals.time_of(run.store)
    deadline = datetime.fromisoformat(asked) + length_of(run.spec.promote.approval_within)
    return Question(
        run_id=run_id or run.run_id,
        n=n,
        pipeline=run.spec.name,
        model=run.spec.model_name,
        alias=run.spec.promote.alias,
        candidate=checkpoint.ref,
        evaluation=evaluation.ref,
        champion=champion.ref if champion else None,
        champion_version=champion.version if champion else None,
        gates=list(gates),
        asked=asked,
        deadline=deadline.isoformat(timespec="seconds"),
        state=state,
        approvers=sorted(named_approvers(run)),
        store=run.store.uri,
    )


def _waits(question: Question, key: str) -> ApprovalPending:
    replaced = f" instead of version {question.champion_version}" if question.champion_version else ""
    met = "The gate is met" if len(question.gates) == 1 else f"All {len(question.gates)} gates are met"
    ready = f"{met}, and a" if question.gates else "A"
    return ApprovalPending(
        f"{ready} person must approve the candidate as {question.name}{replaced} before {readable(question.deadline)}.",
        remedy=f"Answer with `trainwright approve {question.run_id} {key}--reason WHY`, or with `refuse`; "
        f"then `trainwright resume {question.run_id}` continues the run.",
        details={"gates": [gate.to_json() for gate in question.gates], "question": question.to_json()},
    )


def _refused(question: Question, reason: str, remedy: str | None = None) -> ApprovalRefused:
    stays = f"stays at version {question.champion_version}" if question.champion_version else "names no version"
    return ApprovalRefused(
        f"Not promoted: {reason}; {question.name} {stays}.",
        remedy=remedy,
        details={"gates": [gate.to_json() for gate in question.gates], "question": question.to_json()},
    )


def _taken(question: Question, answer: Answer, known: Approvers) -> Approval:
    assert answer.via in ("cli", "prefect", "proxy")
    signature = answer.signature if known.keys else None
    keys = [] if signature is None else [str(one["keyid"]) for one in signature["signatures"]]
    return Approval(
        run_id=question.run_id,
        n=question.n,
        question=question.digest,
        by=answer.by,
        via=answer.via,
        reason=answer.reason,
        at=answer.at,
        keys=keys,
        signature=signature,
        public_key=known.pem_of(answer),
        vouched=known.vouched,
    )
