"""Questions and answers of a run in the store, each created once. Whoever writes an answer, the first one counts.

Each alias has a list of the questions about it, so that a new one supersedes those that nobody has answered, and a
person is not asked again what they refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from data_contracts.approvals import Answer, Question, expired, is_late
from data_contracts.canonical import valid_name
from data_contracts.errors import CorruptError
from infra.store import Store, layout

# Each question supersedes the open ones before it, so few of the newest are open.
_MOST_OPEN, _MOST_REFUSED = 20, 50


def time_of(store: Store) -> str:
    """The time by the store's clock, which whoever asks, answers or reads has in common: UTC, ISO 8601 with seconds."""
    return datetime.fromtimestamp(store.now_s(), UTC).isoformat(timespec="seconds")


def latest_question(store: Store, run_id: str) -> Question | None:
    """The last question that a run asked; None if it asked none."""
    numbers = [int(name) for name in store.list(layout.approvals(run_id)) if name.isdecimal()]
    return None if not numbers else _question(store, run_id, max(numbers))


def ask(store: Store, question: Question, spared: str | None = None) -> Question:
    """Store a question; returns it, or the one that another process of the run stored under its number.

    Questions of earlier runs about the same alias that nobody has answered count as refused from now on.

    Args:
        spared: a run whose question stays open all the same.
    """
    k = _enter(store, question)
    path = layout.question(question.run_id, question.n)
    if not store.create_once(path, question.to_json()):
        question = store.read_as(path, Question.from_json)
    for earlier in islice(_listed(store, question.model, question.alias, k), _MOST_OPEN):
        if earlier.run_id not in (question.run_id, spared) and answer_to(store, earlier, question.asked) is None:
            give(store, earlier, _superseded(earlier, question))
    return question


def superseded_by(store: Store, question: Question) -> list[str]:
    """The runs whose questions a question superseded."""
    found = []
    for earlier in islice(_listed(store, question.model, question.alias), _MOST_OPEN):
        answer = stored_answer(store, earlier)
        if answer is not None and (answer.decision, answer.by) == ("superseded", question.run_id):
            found.append(earlier.run_id)
    return list(dict.fromkeys(found))


def refused_before(store: Store, question: Question) -> tuple[Question, Answer] | None:
    """The question of another run, about the same and in the same state of the alias, that a person refused."""
    for earlier in islice(_listed(store, question.model, question.alias), _MOST_REFUSED):
        if (earlier.about, earlier.state) != (question.about, question.state) or earlier.run_id == question.run_id:
            continue
        answer = stored_answer(store, earlier)
        if answer is None or answer.decision != "refused" or answer.question != earlier.digest:
            continue
        if not is_late(earlier, answer.at):
            return earlier, answer
    return None


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


def _enter(store: Store, question: Question) -> int:
    """Enter a question at the end of its alias's list; returns its number there."""
    k = max(_numbers(store, question.model, question.alias), default=-1) + 1
    entry = {"schema_version": 1, "run_id": question.run_id, "n": question.n}
    while not store.create_once(layout.question_entry(question.model, question.alias, k), entry):
        k += 1
    return k


def _listed(store: Store, model: str, alias: str, before: int | None = None) -> Iterator[Question]:
    """The questions about an alias, the newest first; those that were deleted, or never stored, are left out.

    Args:
        before: only those that stand before this number in the list.
    """
    for k in sorted(_numbers(store, model, alias), reverse=True):
        entry = (
            None
            if before is not None and k >= before
            else store.find_as(layout.question_entry(model, alias, k), _named)
        )
        found = None if entry is None else _question(store, *entry)
        if found is not None and (found.model, found.alias) == (model, alias):
            yield found


def _numbers(store: Store, model: str, alias: str) -> list[int]:
    names = [name.removesuffix(".json") for name in store.list(layout.questions(model, alias))]
    return [int(name) for name in names if name.isdecimal()]


def _named(entry: dict[str, Any]) -> tuple[str, int]:
    run_id, n = valid_name(entry["run_id"]), int(entry["n"])
    if n < 0:
        raise ValueError("a question's number is not below 0")
    return run_id, n


def _superseded(question: Question, by: Question) -> Answer:
    return Answer(
        question=question.digest,
        decision="superseded",
        by=by.run_id,
        via="run",
        reason=f"the run {by.run_id} asked about {by.name} later, and so superseded this question",
        at=by.asked,
    )


def _question(store: Store, run_id: str, n: int) -> Question | None:
    path = layout.question(run_id, n)
    found = store.find_as(path, Question.from_json)
    if found is not None and (found.run_id, found.n) != (run_id, n):
        raise CorruptError(f"{path} is a question of the run {found.run_id}.", details={"file": path})
    return found
