"""A form's answer counts by when it was given, not by when a worker took it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from data_contracts.errors import ApprovalRefused
from flows import flow_runs
from infra import approvals
from infra.orchestrator.flow_runs import FormAnswer
from tasks.stages import approval
from tests.unit.tasks.stages.test_approval import Waiting
from tests.unit.tasks.stages.test_promote import Place
from tests.unit.tasks.stages.test_promote import place as place


@pytest.mark.parametrize("late", [False, True])
def test_a_form_counts_by_its_own_time_if_its_worker_comes_after_the_deadline(
    place: Place, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    run = Waiting(place, 1)
    asked = run.waits()
    deadline = datetime.fromisoformat(asked.deadline)
    given = (deadline + timedelta(minutes=1 if late else -1)).isoformat()
    after = (deadline + timedelta(hours=8)).isoformat()
    monkeypatch.setattr(approvals, "time_of", lambda _: after)
    monkeypatch.setattr(flow_runs, "deployed_flow_run", object)
    monkeypatch.setattr(flow_runs, "form_answer", lambda *_: FormAnswer("approve", "seen", "ada", given))
    flow_runs.take_form_answer(run.run)
    assert approvals.stored_answer(place.store, asked) is not None
    if late:
        with pytest.raises(ApprovalRefused, match="after the deadline"):
            run.resumed()
    else:
        assert run.resumed().approval.by == "ada"


def test_looking_at_a_question_whose_deadline_has_passed_writes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Waiting(place, 1)
    asked = run.waits()
    assert approval.pending(run.run) == asked
    after = (datetime.fromisoformat(asked.deadline) + timedelta(hours=8)).isoformat()
    monkeypatch.setattr(approval, "now", lambda: after)
    assert approval.pending(run.run) is None
    assert approvals.stored_answer(place.store, asked) is None


def test_the_flow_run_of_a_superseded_question_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[str, ...]] = []
    monkeypatch.setattr(flow_runs, "wake", lambda *words: ended.append(words))
    monkeypatch.setattr(flow_runs, "deployed_flow_run", lambda: None)
    older, newer = Waiting(place, 1), Waiting(place, 2)
    older.waits()
    newer.waits()
    flow_runs.suspend_if_deployed(newer.run)
    assert [words[:2] for words in ended] == [("run-1", "refuse")]
    with pytest.raises(ApprovalRefused, match="superseded"):
        older.resumed()


def test_a_form_that_says_superseded_is_no_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Waiting(place, 1)
    asked = run.waits()
    filled = FormAnswer("refuse", flow_runs._SUPERSEDED, "run-2", asked.asked_at)
    monkeypatch.setattr(flow_runs, "deployed_flow_run", object)
    monkeypatch.setattr(flow_runs, "form_answer", lambda *_: filled)
    flow_runs.take_form_answer(run.run)
    assert approvals.stored_answer(place.store, asked) is None, "the store does not say that anything superseded it"
