"""What a person answers to a run that waits: `approve` and `refuse`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from data_contracts.approvals import MOST_NAME, Answer, Question, expired, meaning
from data_contracts.errors import ApprovalRefused, UsageError
from data_contracts.times import readable
from infra import approvals
from infra.approvals import keys_of, protection, refuse_stranger, signed
from infra.store import Store
from tasks.run.report import FINAL, latest_report
from tasks.stages.decisions.rollback import checked_reason

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


def open_question(store: Store, run_id: str) -> Question:
    """The question that a run waits for, answered or not; UsageError if it waits for none, or has ended."""
    question = approvals.latest_question(store, run_id)
    if question is None or _is_over(store, question):
        raise UsageError(
            f"The run {run_id} does not wait for an answer{_ended(store, run_id)}.",
            remedy="`trainwright status` lists the runs that wait.",
        )
    return question


def answer(
    store: Store,
    question: Question,
    decision: Literal["approved", "refused"],
    by: str,
    reason: str,
    key: SigningKey | None = None,
) -> Answer:
    """Answer a question that a person has seen.

    Args:
        question: as `open_question` returned it; no other is answered, even if the store has another meanwhile.
        key: signs the answer; None: it is not signed.

    Returns:
        The answer that counts: this one, or an equal one of an earlier call whose reply was lost.

    Raises:
        UsageError: somebody has answered already, there is no reason, or the alias takes only answers that are signed
            with another key.
        ApprovalRefused: the deadline has passed.
    """
    why, name = checked_reason(reason), checked_name(by)
    at, run_id = approvals.time_of(store), question.run_id
    found = approvals.answer_to(store, question, at)
    if found is None:
        refuse_stranger(key, question.name, signers(store, question))
        mine = Answer(question=question.digest, decision=decision, by=name, via="cli", reason=why, at=at)
        mine = mine if key is None else signed(mine.model_copy(update={"about": question.about}), key)
        found = approvals.give(store, question, mine)
        if found == mine:
            return found
    means = meaning(question, found, at)
    if found.decision == "expired":
        raise ApprovalRefused(f"The answer came too late: {expired(question)}, which counts as refused.")
    before = means.reason or f'{found.by} approved it at {readable(found.at)}: "{found.reason}"'
    raise UsageError(
        f"The question of the run {run_id} is answered already: {before}.",
        remedy=f"The first answer counts; `trainwright resume {run_id}` continues the run.",
    )


def checked_name(by: str) -> str:
    """A person's name as it is stored; UsageError if it is empty, too long or not printable."""
    line = " ".join(by.split())
    if not line or len(line) > MOST_NAME or not line.isprintable():
        raise UsageError(
            f"{line[:MOST_NAME]!a} cannot be the name of whoever answers.",
            remedy=f"Use 1 to {MOST_NAME} printable characters.",
        )
    return line


def unsigned_counts(store: Store, question: Question) -> bool:
    """Whether an answer counts that nobody signed."""
    return not signers(store, question)


def signers(store: Store, question: Question) -> list[str]:
    """The ids of the keys that may sign an answer, by question and store; [] if no signature is needed."""
    stored = list(keys_of(protection(store, question.model, question.alias)))
    named = question.approvers
    return [one for one in named or stored if not stored or one in stored] or named


def _is_over(store: Store, question: Question) -> bool:
    """Whether the run has ended, so that no answer to its last question can change anything."""
    report = latest_report(store, question.run_id)
    return report is not None and report.verdict in FINAL


def _ended(store: Store, run_id: str) -> str:
    report = latest_report(store, run_id)
    return f": it ended {report.verdict.replace('_', ' ')}" if report is not None else ""
