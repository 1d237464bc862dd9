"""The levels of all sequences of verdicts together are what was allowed."""

from __future__ import annotations

import math

import pytest

from tasks.evidence.decision import MOST_EFFORT, NOTHING, Spent, comparisons_left, effort, level, used_up


def test_the_levels_of_all_verdicts_that_may_be_seen_sum_to_alpha() -> None:
    nights = 400
    spent = sum(
        math.comb(before, promoted) * level(0.05, Spent(before, promoted))
        for before in range(nights)
        for promoted in range(before + 1)
    )
    # What is left is for later nights, and for more promotions than there were nights.
    assert 0.045 < spent <= 0.05


@pytest.mark.parametrize("shares", [(0.2, 1), (1.0000000001, 1), (1.2, 2)])
def test_a_part_of_an_exposure_counts_as_one(shares: tuple[float, int]) -> None:
    part, whole = shares
    assert level(0.05, Spent(part)) == level(0.05, Spent(whole))


def test_more_was_seen_less_is_left() -> None:
    assert level(0.05) > level(0.05, Spent(1)) > level(0.05, Spent(2)) > level(0.05, Spent(2, 1))
    assert 0 < level(0.05, Spent(10_000, 200)) < 1e-300 or level(0.05, Spent(10_000, 200)) == 0


def test_rows_that_have_decided_nothing_need_gains_of_size_one() -> None:
    assert effort(0.05, NOTHING) == 1
    assert effort(0.05, Spent(10)) > 1.5
    # Beyond the smallest float, too.
    assert math.isfinite(effort(0.05, Spent(100_000, 2_000)))


@pytest.mark.parametrize("spent", [Spent(100, 3), Spent(10, 1), Spent(90.5, 1.5)])
def test_what_is_left_is_the_number_of_comparisons_until_the_rows_are_used_up(spent: Spent) -> None:
    left = comparisons_left(0.05, spent)
    assert left > 0
    assert not used_up(0.05, Spent(spent.comparisons + left - 1, spent.promotions))
    assert used_up(0.05, Spent(spent.comparisons + left, spent.promotions))
    assert effort(0.05, Spent(spent.comparisons + left, spent.promotions)) > MOST_EFFORT
    assert (comparisons_left(0.05, Spent(1000, 5)), comparisons_left(0.05, NOTHING)) == (0, 1_000_000)
