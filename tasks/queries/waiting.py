"""Where a run that waits for an approval stands, for people who look at it; writes nothing."""

from __future__ import annotations

from data_contracts.approvals import meaning
from data_contracts.times import readable
from infra.approvals import latest_question, stored_answer
from infra.audit import now
from infra.store import Store


def standing_of(store: Store, run_id: str) -> str:
    """What a waiting run waits for, as the end of `waiting …`; "" if it has asked nothing."""
    question = latest_question(store, run_id)
    if question is None:
        return ""
    answer = stored_answer(store, question)
    means = meaning(question, answer, now())
    if means.standing == "waiting":
        return f"for an answer before {readable(question.deadline)}"
    if answer is not None and answer.decision == "superseded":
        return f"for nothing: {means.reason}"
    if means.standing == "refused":
        return f"to be resumed: {means.reason}"
    return f"to be resumed: {answer.by if answer else 'a person'} approved it"
