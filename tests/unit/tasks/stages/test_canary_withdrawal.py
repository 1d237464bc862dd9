"""A canary whose records are damaged, or whose pipeline runs no more: it can be taken back, and blocks no other."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.alias_moves import ALIAS
from data_contracts.errors import CorruptError, GateNotMet
from infra.store import layout
from tasks.stages import canary as canary_stage
from tasks.stages import canary_observations
from tasks.stages.canary import withdraw
from tests.support.standing_canary import ANN, CanaryPlace


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> CanaryPlace:
    return CanaryPlace(monkeypatch)


@pytest.mark.parametrize("harm", ["a tally", "the end"])
def test_a_canary_whose_records_are_damaged_can_be_taken_back(place: CanaryPlace, harm: str) -> None:
    canary = place.stands()
    place.night(0, 10)
    damaged = layout.canary_batch("tiny", canary.k, 1, 0) if harm == "a tally" else layout.canary_end("tiny", canary.k)
    place.raced._inner.files[damaged] = b"{", "tag"
    with pytest.raises(CorruptError) as raised:
        place.night(10, 10)
    assert "trainwright canary tiny --withdraw" in str(raised.value.remedy) or harm == "the end"
    receipt = withdraw(place.store, "tiny", "its records are damaged", ANN)
    assert receipt.canary is not None
    assert (receipt.decision, receipt.canary.outcome) == ("ended", "withdrawn")
    assert (place.named(), place.named(ALIAS), place.held()) == (1, None, [2])
    assert place.night(20, 10, n=5).decision == "canary", "and the next one may stand"


def test_an_end_whose_tallies_are_damaged_promotes_nothing(place: CanaryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = place.stands()
    place.night(0, 60)
    with monkeypatch.context() as patch:
        patch.setattr(canary_stage, "_promoted", None)
        with pytest.raises(TypeError):
            place.night(60, 300)
    del place.raced._inner.files[layout.canary_batch("tiny", canary.k, 1, 0)]
    receipt = place.night(400, 10, n=5)
    assert "but canaries/tiny/0/nights/1/0.json is missing" in receipt.sentence
    assert (place.named(), receipt.decision, receipt.version) == (1, "canary", 3)


def test_a_canary_of_another_alias_blocks_until_its_window_is_over_and_no_longer(place: CanaryPlace) -> None:
    place.stands()
    place.passes(days=13)
    with pytest.raises(GateNotMet, match="one canary of a model stands at a time"):
        place.promoted(3, "too-early", alias="staging")
    place.passes(days=2)
    receipt = place.promoted(3, "later", alias="staging")
    assert (receipt.decision, place.named("staging"), place.named()) == ("promoted", 3, 1)
    assert "tiny@canary, version 2, was withdrawn: its window ended at 2026-12-06 10:00 UTC" in receipt.sentence
    assert (place.named(ALIAS), place.held()) == (None, [2])


def test_a_canary_of_another_alias_is_not_promoted_by_a_run_that_does_not_know_its_approval(
    place: CanaryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.stands()
    with monkeypatch.context() as patch:
        patch.setattr(canary_stage, "_promoted", None)
        with pytest.raises(TypeError):
            place.night(0, 400)
    place.passes(days=15)
    with pytest.raises(GateNotMet, match="one canary of a model stands at a time"):
        place.promoted(3, "later", alias="staging")
    assert place.named() == 1
    assert place.night(400, 10).decision == "promoted", "its own run completes it"


def test_a_window_that_ends_while_the_rows_are_scored_is_over(
    place: CanaryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.stands()
    place.passes(days=14)
    scored = canary_observations.score

    def slowly(*what: Any) -> Any:
        place.passes(seconds=1)
        return scored(*what)

    monkeypatch.setattr(canary_observations, "score", slowly)
    receipt = place.night(0, 400, n=5)
    assert (receipt.decision, receipt.version, place.named()) == ("canary", 3, 1)
    assert "tiny@canary, version 2, was withdrawn: its window ended at 2026-12-06 10:00 UTC" in receipt.sentence
    assert receipt.sentence.endswith("on 400 fresh rows")
