"""Who is asked again and who is not: newer questions supersede older ones, and a schedule does not repeat a refusal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from data_contracts.errors import UsageError
from infra import approvals
from tasks.stages.rollback import rollback
from tests.unit.tasks.stages.test_approval import Waiting
from tests.unit.tasks.stages.test_promote import ANN, Place
from tests.unit.tasks.stages.test_promote import place as place


def test_a_newer_question_supersedes_those_that_nobody_answered(place: Place) -> None:
    runs = [Waiting(place, n) for n in (1, 2, 3)]
    for run in runs[:2]:
        run.waits()
    newest = runs[2].waits()
    assert approvals.superseded_by(place.store, newest) == ["run-2"], "run-1 was superseded by run-2 before"
    for run, by in zip(runs[:2], ("run-2", "run-3"), strict=True):
        run.refused(f"the run {by} asked about tiny@champion later, and so superseded")
        with pytest.raises(UsageError, match=f"the run {by} asked about tiny@champion later"):
            run.answered()
    runs[2].answered()
    assert runs[2].resumed().version == 1


def test_a_question_that_was_answered_is_not_superseded(place: Place) -> None:
    first, second = Waiting(place, 1), Waiting(place, 2)
    first.waits()
    first.answered()
    second.waits()
    assert first.resumed().version == 1
    assert second.waits().n == 1, "the champion moved"


def test_another_alias_is_another_question(place: Place) -> None:
    first = Waiting(place, 1)
    first.waits()
    Waiting(place, 2, alias="canary").waits()
    first.answered()
    assert first.resumed().version == 1


def refuse_once(place: Place) -> None:
    place.promoted(1)
    run = Waiting(place, 2)
    run.waits()
    run.answered("refused")


def nightly(place: Place, n: int, number: int = 9) -> Waiting:
    """A later run of the same candidate, which a schedule began."""
    return Waiting(place, n, run_id=f"night-{number}", trigger="schedule")


def test_nobody_is_asked_again_by_a_schedule_what_they_refused(place: Place) -> None:
    refuse_once(place)
    for number in range(3):
        nightly(place, 2, number).refused('ada refused it at .*: "seen", in the run run-2, which had the same')
        assert approvals.latest_question(place.store, f"night-{number}") is None
    Waiting(place, 2, run_id="by-hand", trigger="cli").waits()


def test_another_candidate_or_champion_is_asked_about_after_a_refusal(place: Place) -> None:
    refuse_once(place)
    nightly(place, 3).waits()
    place.promoted(3, run_id="other")
    rollback(place.store, "tiny", "champion", None, ANN, "recall fell")
    nightly(place, 2, 10).waits()


def test_an_expired_question_is_asked_again_by_the_next_night(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Waiting(place, 2)
    asked = run.waits()
    late = (datetime.fromisoformat(asked.deadline) + timedelta(seconds=1)).astimezone(UTC).isoformat()
    with monkeypatch.context() as patch:
        patch.setattr("infra.approvals.time_of", lambda _: late)
        run.refused("nobody answered")
    nightly(place, 2).waits()
