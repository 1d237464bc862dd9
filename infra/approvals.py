"""Questions and answers of a run in the store, each created once. Whoever writes an answer, the first one counts."""

from __future__ import annotations

from data_contracts.approvals import Answer, Question, expired, is_late
from data_contracts.errors import CorruptError
from infra.store import Store, layout


def latest_question(store: Store, run_id: str) -> Question | None:
    """The last question that a run asked; None if it asked none."""
    numbers = [int(name) for name in store.list(layout.approvals(run_id)) if name.isdecimal()]
    return None if not numbers else _question(store, run_id, max(numbers))


def ask(store: Store, question: Question) -> Question:
    """Store a question; returns it, or the one that another process of the run stored under its number."""
    if store.create_once(layout.question(question.run_id, question.n), question.to_json()):
        return question
    found = _question(store, question.run_id, question.n)
    assert found is not None
    return found


def answer_to(store: Store, question: Question, now: str) -> Answer | None:
    """The answer that is stored; None while nobody has answered in time.

    The first reader that finds the deadline passed answers with `expired`, so that no later answer can count.
    """
    found = stored_answer(store, question)
    if found is None and is_late(question, now):
        late = Answer(
            question=question.digest,
            decision="expired",
            by="nobody",
            via="deadline",
            reason=expired(question),
            at=now,
        )
        return give(store, question, late)
    return found


def stored_answer(store: Store, question: Question) -> Answer | None:
    """The answer that is stored; unlike `answer_to`, nothing is written if the deadline has passed."""
    return store.find_as(layout.answer(question.run_id, question.n), Answer.from_json)


def give(store: Store, question: Question, answer: Answer) -> Answer:
    """Store an answer; returns the answer that counts: this one, or the one that was there before."""
    path = layout.answer(question.run_id, question.n)
    if store.create_once(path, answer.to_json()):
        return answer
    return store.read_as(path, Answer.from_json)


def _question(store: Store, run_id: str, n: int) -> Question | None:
    path = layout.question(run_id, n)
    found = store.find_as(path, Question.from_json)
    if found is not None and (found.run_id, found.n) != (run_id, n):
        raise CorruptError(f"{path} is a question of the run {found.run_id}.", details={"file": path})
    return found
