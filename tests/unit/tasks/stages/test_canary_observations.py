"""What fresh rows say of a canary: scores of any kind, and scores that say nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data_contracts.errors import CorruptError, InsufficientEvidence
from infra.models import canaries
from infra.store import layout
from tasks.stages import canary_observations
from tests.support.standing_canary import CanaryPlace

Scores = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> CanaryPlace:
    return CanaryPlace(monkeypatch)


def score(patch: pytest.MonkeyPatch, place: CanaryPlace, change: Scores) -> None:
    """Change both models' scores of each row."""
    scored = place._outcomes

    def changed(store: Any, of: Any, metric: str) -> Any:
        found = scored(store, of, metric)
        return replace(found, values=change(found.values))

    patch.setattr(canary_observations, "outcomes_of", changed)


def test_a_score_that_is_not_a_number_refuses_the_night_and_tallies_nothing(
    place: CanaryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = place.stands()
    with monkeypatch.context() as patch:
        score(patch, place, lambda values: np.where(np.arange(len(values)) == 3, np.nan, values))
        with pytest.raises(InsufficientEvidence, match="the champion's score of row 3 is nan") as caught:
            place.night(0, 60)
    assert "trainwright canary tiny --withdraw" in caught.value.remedy
    assert canaries.observation_batches(place.store, canary, 1) == []
    place.night(0, 60)
    assert [one.rows for one in canaries.observation_batches(place.store, canary, 1)] == [60]


def test_scores_other_than_0_and_1_decide_after_300_rows(place: CanaryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stands()
    score(monkeypatch, place, lambda values: 0.7 * values + 0.1)
    receipt = place.night(0, 299)
    assert receipt.decision == "canary"
    assert "on 299 fresh rows, which does not decide yet; about 1 more rows would decide" in receipt.sentence
    assert place.night(299, 1, n=1).decision == "promoted"


def test_models_that_are_equal_stay_open_and_nobody_knows_for_how_long(place: CanaryPlace) -> None:
    place.stands(4)
    sentence = place.night(0, 5_000).sentence
    assert "on 5,000 fresh rows, which does not decide yet; tiny@champion stays" in sentence


def test_a_tally_that_no_rows_have_is_corrupt(place: CanaryPlace) -> None:
    canary = place.stands()
    place.night(0, 60)
    night = canaries.observation_batches(place.store, canary, 1)[0]
    forged = night.model_copy(update={"accumulator": {**night.accumulator, "lost": -5}})
    assert canaries.add_batch(place.store, canary, 1, 1, forged)
    with pytest.raises(CorruptError, match="the tally cannot be read: lost is not a whole number") as caught:
        place.night(60, 10)
    assert layout.canary_batch("tiny", canary.k, 1, 1) in caught.value.message
