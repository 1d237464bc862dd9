"""The levels of all sequences of verdicts together are what was allowed."""

from __future__ import annotations

import math

import pytest

from tasks.evidence.levels import level


def test_the_levels_of_all_verdicts_that_may_be_seen_sum_to_alpha() -> None:
    nights = 400
    spent = sum(
        math.comb(before, promoted) * level(0.05, before, promoted)
        for before in range(nights)
        for promoted in range(before + 1)
    )
    # What is left is for later nights, and for more promotions than there were nights.
    assert 0.045 < spent <= 0.05


@pytest.mark.parametrize("shares", [(0.2, 1), (1.0000000001, 1), (1.2, 2)])
def test_a_part_of_an_exposure_counts_as_one(shares: tuple[float, int]) -> None:
    part, whole = shares
    assert level(0.05, part, 0) == level(0.05, whole, 0)


def test_more_was_seen_less_is_left() -> None:
    assert level(0.05, 0, 0) > level(0.05, 1, 0) > level(0.05, 2, 0) > level(0.05, 2, 1)
    assert 0 < level(0.05, 10_000, 200) < 1e-300 or level(0.05, 10_000, 200) == 0
