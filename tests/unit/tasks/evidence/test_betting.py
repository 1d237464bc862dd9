"""Bets whose capital says whether a mean gain is above a bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.evidence.sequential import counts_show, log_capital_of_counts, log_capital_of_sums, sums_show

COUNTS = st.integers(0, 10**6)
BOUNDS = st.floats(-0.99, 0.99)


@pytest.mark.parametrize("bound", [-0.9, -0.01, 0.0, 0.3])
@pytest.mark.parametrize("discordance", [0.0, 0.4, 1.0])
def test_the_capital_is_expected_not_to_grow_if_the_gain_is_what_was_asked_for(
    bound: float, discordance: float
) -> None:
    discordance = max(discordance, abs(bound))
    shares = (discordance + bound) / 2, (discordance - bound) / 2, 1 - discordance
    expected = 0.0
    for won in range(9):  # every way in which 8 rows can fall
        for lost in range(9 - won):
            tied = 8 - won - lost
            ways = math.comb(8, won) * math.comb(8 - won, lost)
            chance = ways * shares[0] ** won * shares[1] ** lost * shares[2] ** tied
            expected += chance * math.exp(log_capital_of_counts(won, lost, tied, bound))
    assert expected == pytest.approx(1, abs=1e-3)
    assert expected <= 1


def test_tied_rows_say_nothing_about_a_bound_of_zero_and_much_about_a_margin() -> None:
    assert log_capital_of_counts(20, 5, 0, 0.0) == pytest.approx(float(log_capital_of_counts(20, 5, 10**6, 0.0)))
    assert not counts_show(0, 0, 400, -0.01, 0.05)
    assert counts_show(0, 0, 500, -0.01, 0.05)
    assert not counts_show(0, 0, 10**9, 0.0, 0.05)


@settings(deadline=None, max_examples=60)
@given(COUNTS, COUNTS, COUNTS, BOUNDS)
def test_a_better_row_or_a_lower_bound_never_lowers_the_capital(won: int, lost: int, tied: int, bound: float) -> None:
    slack = 1e-9 * (won + lost + tied + 1)
    capital = log_capital_of_counts(won, lost, tied, bound)
    assert log_capital_of_counts(won + 1, lost, tied, bound) >= capital - slack
    assert log_capital_of_counts(won, lost + 1, tied, bound) <= capital + slack
    assert log_capital_of_counts(won, lost, tied, bound - 0.005) >= capital - slack


@settings(deadline=None, max_examples=60)
@given(COUNTS, COUNTS, COUNTS, BOUNDS)
def test_a_gain_is_never_shown_to_be_above_itself_or_above_and_below_a_bound(
    won: int, lost: int, tied: int, bound: float
) -> None:
    gain = (won - lost) / max(won + lost + tied, 1)
    assert not counts_show(won, lost, tied, gain, 0.4999)
    assert not (counts_show(won, lost, tied, bound, 0.4999) and counts_show(lost, won, tied, -bound, 0.4999))


@pytest.mark.parametrize(
    ("counts", "bound", "shown"),
    [
        ((10**9, 0, 0), 1.0, False), ((10**9, 0, 0), 2.0, False), ((0, 0, 0), -1.0, False), ((0, 0, 1), -1.0, True),
        ((0, 10**9, 0), -1.0, False), ((1, 10**9, 0), -1.0, True), ((0, 0, 0), 0.0, False),
        ((0, 0, 0), -2.0, False), ((0, 1, 0), -2.0, True),
        ((10**15, 0, 0), 0.9, True), ((0, 10**15, 10**15), 0.9, False),
    ],
)  # fmt: skip
def test_the_ends(counts: tuple[int, int, int], bound: float, shown: bool) -> None:
    assert counts_show(*counts, bound, 0.05) is shown


def capital_of_rows(gains: np.ndarray[Any, Any]) -> float:
    """The logarithm of the capital if the same bets are made on each row."""
    shares, weights = 0.999999 * 2.0 ** (-np.arange(96) / 4), (1 - 2 ** (-1 / 8)) * 2.0 ** (-np.arange(96) / 8)
    return float(np.log((weights * np.exp(np.log1p(np.outer(gains, shares)).sum(axis=0))).sum()))


@settings(deadline=None, max_examples=60)
@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-1, 30)))
def test_sums_never_claim_more_than_the_bets_on_each_row_won(gains: np.ndarray[Any, Any]) -> None:
    assert log_capital_of_sums(gains.sum(), (gains**2).sum()) <= capital_of_rows(gains) + 1e-9


def test_small_gains_lose_little_by_being_summed() -> None:
    gains = np.random.default_rng(1).uniform(-0.1, 0.102, 50_000)
    assert 0.75 * capital_of_rows(gains) < log_capital_of_sums(gains.sum(), (gains**2).sum()) < capital_of_rows(gains)


def test_sums_of_nothing_show_nothing() -> None:
    assert not sums_show(0.0, 0.0, 0.4999)
    assert not sums_show(-5.0, 10.0, 0.4999)
    assert sums_show(50.0, 10.0, 0.0001)


def test_many_tallies_are_answered_at_once() -> None:
    won = np.array([[5, 40], [60, 0]])
    found = log_capital_of_counts(won, 10, 100, 0.01)
    assert found.shape == (2, 2)
    assert found[0, 1] == pytest.approx(float(log_capital_of_counts(40, 10, 100, 0.01)))


def test_a_gain_is_shown_as_soon_as_the_capital_is_one_over_the_level() -> None:
    counted, summed = float(log_capital_of_counts(40, 12, 100, 0.01)), float(log_capital_of_sums(12.0, 20.0))
    for capital, show in ((counted, lambda level: counts_show(40, 12, 100, 0.01, level)),
                          (summed, lambda level: sums_show(12.0, 20.0, level))):  # fmt: skip
        assert capital > 0.7
        assert show(math.exp(-capital + 1e-9))
        assert not show(math.exp(-capital - 1e-9))
