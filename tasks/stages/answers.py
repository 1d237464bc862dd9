"""What a person answers to a run that waits: `approve` and `refuse`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from data_contracts.approvals import MOST_NAME, Answer, Question, expired, meaning
from data_contracts.errors import ApprovalRefused, UsageError
from data_contracts.times import readable
from infra import approvals
from infra.approval_signatures import refuse_stranger, signed
from infra.audit import now
from infra.protections import protection
from infra.store import Store
from tasks.run.report import latest_report
from tasks.stages.rollback import checked_reason

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


def answer(
    store: Store,
    run_id: str,
    decision: Literal["approved", "refused"],
    by: str,
    reason: str,
    key: SigningKey | None = None,
) -> Answer:
    """Answer the question that a run waits for.

    Args:
        key: signs the answer; None: it is not signed.

    Returns:
        The answer that counts: this one, or an equal one of an earlier call whose reply was lost.

    Raises:
        UsageError: the run does not wait for an answer, somebody has answered already, there is no reason, or the alias
            takes only answers that are signed with another key.
        ApprovalRefused: the deadline has passed.
    """
    why, name = checked_reason(reason), checked_name(by)
    question = approvals.latest_question(store, run_id)
    if question is None or _is_over(store, question):
        raise UsageError(
            f"The run {run_id} does not wait for an answer{_ended(store, run_id)}.",
            remedy="`trainwright status` lists the runs that wait.",
        )
    at = now()
    found = approvals.answer_to(store, question, at)
    if found is None:
        refuse_stranger(key, protection(store, question.model, question.alias))
        mine = Answer(question=question.digest, decision=decision, by=name, via="cli", reason=why, at=at)
        mine = mine if key is None else signed(mine, key)
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
    found = protection(store, question.model, question.alias)
    return found is None or not found.keys


def _is_over(store: Store, question: Question) -> bool:
    """Whether the run has ended, so that no answer to its last question can change anything."""
    report = latest_report(store, question.run_id)
    return report is not None and report.verdict in ("promoted", "unchanged", "not_promoted", "rejected")


def _ended(store: Store, run_id: str) -> str:
    report = latest_report(store, run_id)
    return f": it ended {report.verdict.replace('_', ' ')}" if report is not None else ""
