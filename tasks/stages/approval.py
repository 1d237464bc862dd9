"""Whether a person lets a candidate be promoted: asks once, reads the answer, and asks again if the champion moved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from data_contracts.approvals import Answer, Protection, Question, is_late, meaning
from data_contracts.approved import Approval
from data_contracts.errors import ApprovalPending, ApprovalRefused, CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, Evaluation, GateResult, ModelVersion
from data_contracts.pipeline_spec.arrival import length_of
from data_contracts.times import readable
from infra import approvals
from infra.approval_signatures import fault
from infra.audit import now
from infra.protections import protection
from infra.store import layout
from tasks.run.run import Run


def is_asked_for(run: Run) -> bool:
    """Whether a promotion of this run needs an approval, by its spec or by the alias's protection."""
    promote = run.spec.promote
    return promote.approval == "manual" or "approved" in promote.require or _protection(run) is not None


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
) -> Approval | None:
    """The approval of this promotion, which meets its gates; None if none is needed.

    Raises:
        ApprovalPending: nobody has answered yet. The question is in the store.
        ApprovalRefused: a person refused, nobody answered in time, or the answer is not signed as it must be.
    """
    if not is_asked_for(run):
        return None
    question = approvals.latest_question(run.store, run.run_id)
    while True:
        if question is None:
            question = approvals.ask(run.store, _question(run, 0, checkpoint, evaluation, gates, champion))
        _refuse_foreign(run, question)
        answer = approvals.answer_to(run.store, question, now())
        means = meaning(question, answer, now())
        if means.standing == "refused":
            raise _refused(question, means.reason)
        if (question.champion, question.candidate) == (champion and champion.ref, checkpoint.ref):
            break
        # The gates were computed against another champion than the one that the person saw.
        asked = _question(run, question.n + 1, checkpoint, evaluation, gates, champion)
        question = approvals.ask(run.store, asked)
    if answer is None:
        raise _waits(question)
    protected = _protection(run)
    if wrong := fault(answer, protected):
        raise _refused(question, wrong)
    return _taken(question, answer, signed=bool(protected and protected.keys))


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


def _protection(run: Run) -> Protection | None:
    return protection(run.store, run.spec.model_name, run.spec.promote.alias)


def _question(
    run: Run,
    n: int,
    checkpoint: Checkpoint,
    evaluation: Evaluation,
    gates: Sequence[GateResult],
    champion: ModelVersion | None,
) -> Question:
    asked = now()
    deadline = datetime.fromisoformat(asked) + length_of(run.spec.promote.approval_within)
    return Question(
        run_id=run.run_id,
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
    )


def _waits(question: Question) -> ApprovalPending:
    replaced = f" instead of version {question.champion_version}" if question.champion_version else ""
    met = "The gate is met" if len(question.gates) == 1 else f"All {len(question.gates)} gates are met"
    ready = f"{met}, and a" if question.gates else "A"
    return ApprovalPending(
        f"{ready} person must approve the candidate as {question.name}{replaced} before {readable(question.deadline)}.",
        remedy=f"Answer with `trainwright approve {question.run_id} --reason WHY`, or with `refuse`; "
        f"then `trainwright resume {question.run_id}` continues the run.",
        details={"gates": [gate.to_json() for gate in question.gates], "question": question.to_json()},
    )


def _refused(question: Question, reason: str) -> ApprovalRefused:
    stays = f"stays at version {question.champion_version}" if question.champion_version else "names no version"
    return ApprovalRefused(
        f"Not promoted: {reason}; {question.name} {stays}.",
        details={"gates": [gate.to_json() for gate in question.gates], "question": question.to_json()},
    )


def _taken(question: Question, answer: Answer, *, signed: bool) -> Approval:
    assert answer.via != "deadline"
    signature = answer.signature if signed else None
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
    )
