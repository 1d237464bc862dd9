"""Questions and answers in a store: each once, whoever comes first, and never after the deadline."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from data_contracts.approvals import meaning
from data_contracts.errors import CorruptError
from infra.approvals import answer_to, ask, give, latest_question
from infra.store import Store, layout
from tests.unit.data_contracts.test_approvals import AFTER, ASKED, answer, question


def test_the_latest_question_is_the_one_with_the_highest_number_and_is_asked_once(store: Store) -> None:
    assert latest_question(store, "r1") is None
    for n in range(11):
        ask(store, question(n=n))
    newest = question(n=10)
    assert latest_question(store, "r1") == newest
    assert ask(store, question(n=10, asked_at=AFTER)) == newest, "two processes of a run ask one question"


def test_of_many_answers_at_once_one_counts_for_all(store: Store) -> None:
    asked = ask(store, question())
    given = [answer("approved" if k % 2 else "refused", by=f"p{k}") for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        counted = list(pool.map(lambda one: give(store, asked, one), given))
    assert len({one.by for one in counted}) == 1
    assert answer_to(store, asked, ASKED) == counted[0]


def test_nobody_can_answer_once_a_reader_found_the_deadline_passed(store: Store) -> None:
    asked = ask(store, question())
    assert answer_to(store, asked, ASKED) is None
    late = answer_to(store, asked, AFTER)
    assert late.decision == "expired"
    assert give(store, asked, answer(at=ASKED)) == late, "one that is dated back, too"
    assert meaning(asked, answer_to(store, asked, ASKED), ASKED).standing == "refused"


def test_a_record_of_another_run_or_number_is_damage(store: Store) -> None:
    store.create_json(layout.question("r2", 0), question().to_json())
    with pytest.raises(CorruptError, match="is a question of the run r1"):
        latest_question(store, "r2")
    ask(store, question())
    store.create_json(layout.answer("r1", 0), {**answer().to_json(), "decision": "perhaps"})
    with pytest.raises(CorruptError):
        answer_to(store, question(), ASKED)


def test_an_answer_that_is_copied_from_another_run_counts_for_nothing(store: Store) -> None:
    give(store, ask(store, question()), answer())
    other = ask(store, question(run_id="r2"))
    store.create_json(layout.answer("r2", 0), store.read_json(layout.answer("r1", 0)))
    assert meaning(other, answer_to(store, other, ASKED), ASKED).standing == "refused"
