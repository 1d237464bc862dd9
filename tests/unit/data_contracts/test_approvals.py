"""What a question and its answer mean: the same for every reader, at any time after the answer is there."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.approvals import Answer, Question, is_late, meaning
from data_contracts.handoffs import GateResult, Ref

ASKED, DEADLINE, AFTER = "2026-11-25T10:00:00+00:00", "2026-11-26T10:00:00+00:00", "2026-11-26T10:00:01+00:00"


def ref(uri: str) -> Ref:
    return Ref(uri=uri, id="1" * 64, seal="2" * 64)


def question(**changes: Any) -> Question:
    told: dict[str, Any] = {
        **{"run_id": "r1", "n": 0, "pipeline": "tiny", "model": "tiny", "alias": "champion"},
        **{"candidate": ref("trainings/k-0/checkpoints/1-g0"), "evaluation": ref("evaluations/e-0")},
        **{"champion": ref("models/tiny/1"), "champion_version": 1, "asked_at": ASKED, "deadline": DEADLINE},
    }
    return Question(**{**told, **changes})


def answer(decision: str = "approved", at: str = DEADLINE, **changes: Any) -> Answer:
    told = {"question": question().digest, "by": "ada", "via": "cli", "reason": "seen"}
    return Answer.model_validate({**told, "decision": decision, "at": at, **changes})


CASES = [
    # answer, now, standing, a part of the reason
    (None, ASKED, "waiting", ""),
    (None, DEADLINE, "waiting", ""),
    (None, AFTER, "refused", "nobody answered"),
    (answer(at=ASKED), ASKED, "approved", ""),
    (answer(at=DEADLINE), AFTER, "approved", ""),
    (answer(at=AFTER), AFTER, "refused", "after the deadline"),
    (answer(at=AFTER), ASKED, "refused", "after the deadline"),
    (answer(at="2026-11-26T11:00:00+01:00"), AFTER, "approved", ""),
    (answer(at="2026-11-26T11:00:01+01:00"), AFTER, "refused", "after the deadline"),
    (answer("refused"), ASKED, "refused", 'ada refused it at 2026-11-26 10:00 UTC: "seen"'),
    (answer("expired", AFTER, via="deadline", by="nobody"), ASKED, "refused", "nobody answered"),
    (answer(question="0" * 64), ASKED, "refused", "another question"),
    (answer("refused", question="0" * 64), ASKED, "refused", "another question"),
    (answer("superseded", via="run", by="r9", reason="the run r9 asked later"), AFTER, "refused", "r9 asked later"),
]


@pytest.mark.parametrize(("given", "now", "standing", "reason"), CASES)
def test_meaning(given: Answer | None, now: str, standing: str, reason: str) -> None:
    means = meaning(question(), given, now)
    assert (means.standing, reason in means.reason) == (standing, True), means


OTHERS = [
    {"run_id": "r2"},
    {"n": 1},
    {"model": "other"},
    {"alias": "other"},
    {"candidate": ref("trainings/k-0/checkpoints/2-g0")},
    {"evaluation": ref("evaluations/e-1")},
    {"champion": None, "champion_version": None},
    {"deadline": AFTER},
    {"state": "3" * 64},
    {"approvers": ["4" * 64]},
    {"gates": [GateResult(metric="a", met=True, value=1, bound=0, sentence="a is 1")]},
]


@pytest.mark.parametrize("changes", OTHERS, ids=lambda changes: next(iter(changes)))
def test_an_answer_to_one_question_counts_for_no_other(changes: dict[str, Any]) -> None:
    assert meaning(question(**changes), answer(), ASKED).standing == "refused"


def test_what_a_signature_covers_is_everything_else() -> None:
    plain = answer()
    signed = plain.model_copy(update={"signature": {"payload": "x"}})
    assert signed.signed_bytes == plain.signed_bytes
    for changes in (
        {"reason": "other"},
        {"by": "eve"},
        {"at": ASKED},
        {"question": "0" * 64},
        {"via": "prefect"},
        {"about": question().about},
    ):
        assert answer(**changes).signed_bytes != plain.signed_bytes
    assert "signature" not in plain.to_json()


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValidationError):
        question(deadline="2026-11-26T10:00:00")
    assert is_late(question(), AFTER)
    assert not is_late(question(), DEADLINE)


NOBODYS = [("approved", "deadline"), ("refused", "deadline"), ("expired", "cli"), ("expired", "run")]
NOBODYS += [("superseded", "cli"), ("superseded", "deadline"), ("approved", "run"), ("refused", "run")]


@pytest.mark.parametrize(("decision", "via"), NOBODYS)
def test_a_deadline_only_expires_and_a_later_run_only_supersedes(decision: str, via: str) -> None:
    with pytest.raises(ValidationError, match=f"an answer via {via} cannot be {decision}"):
        answer(decision, via=via)


def test_what_an_answer_is_about_changes_with_each_of_its_parts() -> None:
    plain = question().about
    others = [
        {"alias": "other"},
        {"model": "other"},
        {"champion": None},
        {"candidate": ref("a").model_copy(update={"id": "9"})},
    ]
    gates = [GateResult(metric="a", met=True, value=1, bound=0, sentence="a is 1")]
    for changes in (*others, {"gates": gates}):
        assert question(**changes).about != plain
    decided = [gates[0].model_copy(update={"ledger": "3 comparisons"})]
    assert question(gates=gates).about == question(gates=decided).about
