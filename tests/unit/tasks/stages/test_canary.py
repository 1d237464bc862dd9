"""A canary in a store in memory: it stands, is scored on fresh rows, and is promoted or withdrawn, once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from data_contracts.alias_moves import ALIAS, CanaryEnd
from data_contracts.errors import GateNotMet, OnHold, StorageUnavailable, UsageError
from data_contracts.pipeline_spec import GateSpec
from infra.models import canaries, registry
from infra.store import layout
from tasks.queries.day import canary_of
from tasks.run.resolve import find_version
from tasks.stages import canary
from tasks.stages.canary import tidy, withdraw
from tasks.stages.promote import promote
from tasks.stages.rollback import release, rollback
from tests.support.standing_canary import ANN, CanaryPlace, evaluation


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> CanaryPlace:
    return CanaryPlace(monkeypatch)


def test_the_first_version_is_promoted_at_once(place: CanaryPlace) -> None:
    receipt = place.promoted(1)
    assert (receipt.decision, receipt.alias, receipt.version) == ("promoted", "champion", 1)
    assert place.named(ALIAS) is None


def test_a_candidate_that_meets_the_gates_stands_beside_the_champion(place: CanaryPlace) -> None:
    place.promoted(1, canary=False)
    receipt = place.promoted(2, gates=[GateSpec(metric="a", min_gain=0.1)])
    assert (receipt.decision, receipt.alias, receipt.version, receipt.previous) == ("canary", ALIAS, 2, None)
    assert (place.named(), place.named(ALIAS)) == (1, 2)
    assert receipt.sentence == (
        "tiny@canary is version 2 until 2026-12-06 10:00 UTC: 100 fresh rows or more must show that it can "
        "replace tiny@champion, which stays at version 1"
    )
    assert [one.met for one in receipt.gates] == [True]
    assert receipt.terms is not None
    assert (receipt.terms.alias, receipt.terms.against, receipt.terms.min_rows) == ("champion", 1, 100)
    with pytest.raises(GateNotMet):
        CanaryPlace.promoted(place, 3, "other", gates=[GateSpec(metric="a", min=0.9)], canary=False)


def test_a_canary_that_is_better_is_promoted_by_the_run_that_shows_it(place: CanaryPlace) -> None:
    place.stands()
    first = place.night(0, 60)
    assert (first.decision, first.version) == ("canary", 2)
    assert "60 of 100 fresh rows against version 1" in first.sentence
    assert "this run's candidate was not considered" in first.sentence
    assert [one.met for one in first.gates] == [False]
    receipt = place.night(60, 300)
    assert (receipt.decision, receipt.alias, receipt.version, receipt.previous) == ("promoted", "champion", 2, 1)
    assert receipt.canary is not None
    assert receipt.canary.status is not None
    assert (receipt.canary.outcome, receipt.canary.status.rows) == ("promoted", 360)
    assert [night.rows for night in receipt.canary.batches] == [60, 300]
    assert [(one.met, one.evidence is not None) for one in receipt.gates] == [(True, True)]
    assert place.history("champion")[-1] == receipt
    assert (place.named(), place.named(ALIAS), place.held()) == (2, None, [])
    assert [one.decision for one in place.history()] == ["canary", "ended"]
    assert place.history()[-1].sentence.startswith("tiny@canary, version 2, was promoted: a +")
    assert place.night(400, 100, n=5).decision == "canary", "and the next one may stand"


def test_a_canary_that_is_worse_is_withdrawn_and_this_runs_candidate_is_considered(place: CanaryPlace) -> None:
    place.stands(3)
    receipt = place.night(0, 400, n=5)
    assert (receipt.decision, receipt.version) == ("canary", 3)
    assert "; tiny@canary, version 2, was withdrawn: a -0." in receipt.sentence
    assert [one.decision for one in place.history()] == ["canary", "ended", "canary"]
    assert place.history()[1].canary.outcome == "worse"
    assert (place.named(), place.named(ALIAS), place.held()) == (1, 3, [2])


def test_what_became_of_a_canary_stands_before_a_refusal(place: CanaryPlace) -> None:
    place.stands(3)
    with pytest.raises(GateNotMet, match=r"^tiny@canary, version 2, was withdrawn: a -0\..*\. Not promoted, 1 of 1"):
        place.night(0, 400, gates=[GateSpec(metric="a", min=0.9)])


def test_a_withdrawn_checkpoint_does_not_stand_again_until_it_is_released(place: CanaryPlace) -> None:
    place.stands(3)
    place.night(0, 400, n=1)
    assert place.named(ALIAS) is None
    with pytest.raises(OnHold, match="version 2 was withdrawn as canary") as raised:
        place.promoted(3, "again")
    assert "trainwright release tiny@canary 2 --reason WHY" in str(raised.value)
    release(place.store, "tiny", ALIAS, 2, "other rows", ANN)
    assert place.named(ALIAS) is None, "a released alias that has ended still names nothing"
    assert place.promoted(3, "again").decision == "canary"


def test_force_lets_a_withdrawn_checkpoint_stand_again(place: CanaryPlace) -> None:
    place.stands(3)
    place.night(0, 400, n=1)
    receipt = place.promoted(3, "again", force="the rows were wrong")
    assert receipt.decision == "canary"
    assert receipt.force is not None
    assert (receipt.force.reason, place.held()) == ("the rows were wrong", [])


def test_the_same_rows_count_once(place: CanaryPlace) -> None:
    canary = place.stands()
    place.night(0, 60)
    place.night(0, 60, run_id="again")
    place.night(30, 40, run_id="overlap")
    place.rows = np.repeat(np.arange(70, 75), 3)
    place.promoted(4, "repeated")
    nights = canaries.observation_batches(place.store, canary, 1)
    assert [one.rows for one in nights] == [60, 10, 5]


def test_no_fresh_rows_add_nothing(place: CanaryPlace) -> None:
    canary = place.stands()
    place.seen = {1: np.arange(30), 2: np.arange(30, 50)}
    assert "0 of 100 fresh rows" in place.night(0, 50).sentence
    assert canaries.observation_batches(place.store, canary, 1) == []
    place.night(0, 51)
    assert [one.rows for one in canaries.observation_batches(place.store, canary, 1)] == [1]


def test_a_unit_that_was_tallied_counts_once(place: CanaryPlace) -> None:
    place.units = np.empty(0, np.uint64)
    canary = place.stands()
    place.units = np.array([7, 7, 8], np.uint64)
    place.night(0, 3)
    place.units = np.array([7, 9], np.uint64)
    place.night(3, 2)
    nights = canaries.observation_batches(place.store, canary, 1)
    assert [one.rows for one in nights] == [3, 1]


def test_a_window_that_is_over_withdraws_for_every_reader(place: CanaryPlace) -> None:
    canary = place.stands()
    place.passes(days=14)
    assert find_version(place.store, "tiny@canary")[0].version == 2
    place.passes(seconds=1)
    view = canary_of(place.store, "tiny")
    assert view is not None
    assert view.sentence == "tiny@canary, version 2, is withdrawn: its window ended at 2026-12-06 10:00 UTC"
    with pytest.raises(UsageError, match=r"is withdrawn: its window ended"):
        find_version(place.store, "tiny@canary")
    receipt = place.night(0, 400, n=1)
    assert receipt.decision == "unchanged"
    assert (place.named(), place.named(ALIAS), place.held()) == (1, None, [2])
    end = canaries.end_of(place.store, canary)
    assert end is not None
    assert (end.outcome, end.reason[:41]) == ("expired", "its window ended at 2026-12-06 10:00 UTC ")
    with pytest.raises(UsageError, match="tiny has no canary; version 2 was the last"):
        find_version(place.store, "tiny@canary")
    place.passes(days=-10)  # by a clock that is behind it is over, too
    with pytest.raises(UsageError, match="tiny has no canary"):
        find_version(place.store, "tiny@canary")


def test_another_champion_begins_the_tally_anew(place: CanaryPlace) -> None:
    canary = place.stands()
    place.night(0, 60)
    place.promoted(4, "by-hand", canary=False)
    receipt = place.night(60, 60, n=1)
    assert "tiny@champion is version 3 now, so the tally began anew: 60 of 100 fresh rows" in receipt.sentence
    rollback(place.store, "tiny", "champion", 1, ANN, "back")
    assert "90 of 100 fresh rows against version 1" in place.night(60, 30, n=3).sentence
    assert [one.rows for one in canaries.observation_batches(place.store, canary, 1)] == [60, 30]


def test_a_canary_that_somebody_promoted_ends(place: CanaryPlace) -> None:
    place.stands()
    place.promoted(2, "by-hand", canary=False)
    assert place.night(0, 300, n=2).decision == "unchanged"
    assert "was moved to its checkpoint already" in place.history()[-1].sentence


def test_a_canary_on_hold_is_not_promoted(place: CanaryPlace) -> None:
    place.stands()
    place.promoted(2, "by-hand", canary=False)
    rollback(place.store, "tiny", "champion", None, ANN, "it was bad")
    assert place.night(0, 400, n=1).decision == "unchanged"
    assert place.history()[-1].canary.outcome == "held"
    assert (place.named(), place.named(ALIAS)) == (1, None)


def test_a_requirement_that_was_not_checked_withdraws(place: CanaryPlace) -> None:
    place.stands()
    place.more = {"require": ["clean_commit"]}
    place.night(0, 400, n=1)
    assert "promote.require asks for clean_commit, which was not checked" in place.history()[-1].sentence


def test_one_canary_of_a_model_stands_at_a_time(place: CanaryPlace) -> None:
    place.stands()
    place.promoted(1, "staging", alias="staging", canary=False)
    with pytest.raises(GateNotMet, match="version 2 stands under tiny@canary for tiny@champion"):
        place.promoted(4, "other", alias="staging")


def test_the_canarys_own_checkpoint_as_candidate_changes_nothing(place: CanaryPlace) -> None:
    place.stands()
    assert place.night(0, 50, n=2).version == 2
    assert registry.next_version(place.store, "tiny") == 3


def test_a_resumed_run_finds_what_it_did(place: CanaryPlace) -> None:
    place.stands()
    assert place.promoted(2).decision == "canary"
    place.night(0, 400, run_id="better")
    again = place.promoted(4, "better")
    assert (again.decision, again.version, len(place.history("champion"))) == ("promoted", 2, 2)


@pytest.mark.parametrize("cut", ["before", "between"])
def test_a_run_that_is_killed_after_the_decision_is_ended_by_the_next_once(
    place: CanaryPlace, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.stands()
    with monkeypatch.context() as patch:
        part = "_promoted" if cut == "before" else "_ended"

        def killed(*_: Any) -> Any:
            raise StorageUnavailable("killed")

        patch.setattr(canary, part, killed)
        with pytest.raises(StorageUnavailable):
            place.night(0, 400, run_id="killed")
    assert (place.named(), place.named(ALIAS)) == (1 if cut == "before" else 2, 2)
    view = canary_of(place.store, "tiny")
    assert view is not None
    assert "was promoted" in view.sentence
    with pytest.raises(UsageError):
        find_version(place.store, "tiny@canary")
    receipt = place.night(400, 10, n=5)
    assert (place.named(), [one.version for one in place.history("champion")]) == (2, [1, 2])
    assert receipt.decision == ("promoted" if cut == "before" else "canary")
    assert not tidy(place.run("x")) or cut == "before"


def test_a_resumed_run_ends_what_it_left(place: CanaryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stands()
    with monkeypatch.context() as patch:
        patch.setattr(canary, "_ended", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            place.night(0, 400, run_id="killed")
    again = place.promoted(4, "killed")
    assert (again.decision, again.version, place.named(ALIAS)) == ("promoted", 2, None)


def test_a_champion_that_moves_before_the_promotion_stays(place: CanaryPlace) -> None:
    place.stands()
    place.raced.race = "before", lambda: place.promoted(4, "first", canary=False)
    receipt = place.night(0, 400, n=4)
    assert receipt.decision == "unchanged"
    assert (place.named(), place.named(ALIAS), place.held()) == (3, None, [])
    assert place.history()[-1].sentence.endswith("but tiny@champion was moved to version 3 before it could be promoted")


def test_two_runs_at_once_make_one_move(place: CanaryPlace) -> None:
    place.stands()
    place.raced.race = "before", lambda: place.promoted(4, "other")
    receipt = place.night(0, 400, n=1)
    assert [(one.version, one.decision) for one in place.history("champion")] == [(1, "promoted"), (2, "promoted")]
    assert [one.decision for one in place.history()][:2] == ["canary", "ended"]
    assert receipt.decision in ("canary", "promoted")


def test_two_runs_that_tally_at_once_count_a_row_once(place: CanaryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    canary, add = place.stands(), canaries.add_batch
    with monkeypatch.context() as patch:

        def second(*about: Any) -> bool:
            patch.setattr(canaries, "add_batch", add)
            rows = place.rows
            place.night(20, 50, run_id="first")
            place.rows = rows
            return add(*about)

        patch.setattr(canaries, "add_batch", second)
        place.night(0, 40, run_id="second")
    assert [(one.run_id, one.rows) for one in canaries.observation_batches(place.store, canary, 1)] == [
        ("first", 50),
        ("second", 20),
    ]


def test_a_person_takes_a_canary_back(place: CanaryPlace) -> None:
    canary = place.stands()
    place.night(0, 50)
    receipt = withdraw(place.store, "tiny", "  it is\nslow ", ANN)
    assert receipt.sentence == 'tiny@canary, version 2, was withdrawn: ann took it back: "it is slow"'
    assert (place.named(), place.named(ALIAS), place.held()) == (1, None, [2])
    with pytest.raises(UsageError, match="tiny has no canary"):
        withdraw(place.store, "tiny", "again", ANN)
    late = CanaryEnd(outcome="promoted", reason="late", by="bob", at=place.now(), run_id="late")
    assert canaries.end(place.store, canary, late).outcome == "withdrawn", "the first end counts"


def test_the_alias_of_a_canary_is_not_moved_by_hand(place: CanaryPlace) -> None:
    place.stands()
    with pytest.raises(UsageError, match="tiny@canary is the alias of a canary"):
        rollback(place.store, "tiny", ALIAS, 1, ANN, "back")
    place.promoted(4, "stranger", alias=ALIAS, canary=False)
    with pytest.raises(
        UsageError, match=r"tiny@canary names version 3, which promote\.canary did not put there"
    ) as one:
        place.night(0, 10)
    assert "trainwright canary tiny --withdraw --reason WHY" in str(one.value)
    withdraw(place.store, "tiny", "mine now", ANN)
    assert place.night(0, 10, n=5).decision == "canary"


def test_a_plan_says_what_comes(place: CanaryPlace) -> None:
    place.promoted(1, canary=False)
    given = place.checkpoints[4], None, evaluation(4)
    assert promote.ahead is not None
    assert promote.ahead(place.run("x"), *given)[1].endswith("then the candidate stands as canary, for 14d at most")
    place.promoted(2)
    assert "first the fresh rows are scored for version 2" in promote.ahead(place.run("x"), *given)[1]
    assert promote.stored(place.run("x"), place.checkpoints[1], None, evaluation(1)) is None, "the canary comes first"


def test_a_metric_that_changed_is_refused(place: CanaryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stands()
    run = place.run("x", target="y")
    with pytest.raises(UsageError, match="is judged by a, and the spec defines it in another way now"):
        promote.find_or_make(run, place.checkpoints[4], None, evaluation(4))
    assert place.store.list(layout.canary_batches("tiny", 0, 1)) == []
