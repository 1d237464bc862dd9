"""The difference of two models that are right or wrong on each row, without resampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from tasks.evidence.significance import PairedCounts, rows_needed


def test_only_the_rows_on_which_they_disagree_count() -> None:
    # 12 of 15 coins or more: (1 + 15 + 105 + 455) / 2**15
    assert PairedCounts(12, 3, 100).p_value() == PairedCounts(12, 3, 10_000).p_value() == pytest.approx(576 / 2**15)
    assert PairedCounts(0, 0, 100).p_value() == 1
    assert PairedCounts(3, 12, 100).p_value() > 0.99


def test_the_interval_is_where_the_test_turns() -> None:
    counts = PairedCounts(20, 60, 900)
    found = counts.interval(0.9)
    assert found.low < counts.gain < found.high
    # But for half a row, which the interval has more.
    assert PairedCounts(20, 60, 900).p_value(found.low + 0.5 / 900) == pytest.approx(0.05, rel=0.1)
    assert counts._score(found.low, nearer=0.5) == pytest.approx(1.645, abs=1e-3)
    assert counts._score(found.high, nearer=0.5) == pytest.approx(-1.645, abs=1e-3)


@pytest.mark.parametrize(("won", "lost"), [(0.02, 0.0), (0.03, 0.02), (0.06, 0.03), (0.15, 0.1)])
@pytest.mark.parametrize("rows", [100, 150, 400])
def test_an_interval_covers_as_often_as_it_says(won: float, lost: float, rows: int) -> None:
    times = 3_000
    draw = np.random.default_rng(1).multinomial(rows, [won, lost, 1 - won - lost], size=times)
    counts = [(int(one), int(other)) for one, other, _ in draw]
    intervals = {one: PairedCounts(*one, rows).interval(0.9) for one in set(counts)}
    covered = np.mean([intervals[one].low <= won - lost <= intervals[one].high for one in counts])
    assert covered >= 0.9 - 3 * math.sqrt(0.09 / times)


@pytest.mark.parametrize("won", [0, 5, 10])
@pytest.mark.parametrize("lost", [0, 5, 10])
def test_no_row_and_every_row(won: int, lost: int) -> None:
    found = PairedCounts(won, lost, max(won + lost, 1)).interval(0.95)
    assert -1 <= found.low <= found.high <= 1
    assert all(map(math.isfinite, (found.low, found.high)))
    if won == lost:
        assert found.low == pytest.approx(-found.high)


def test_the_restricted_share_is_the_most_likely_one() -> None:
    counts, bound = PairedCounts(9, 4, 60), 0.05
    shares = np.linspace(1e-6, (1 - bound) / 2 - 1e-6, 200_001)
    likelihood = 9 * np.log(shares + bound) + 4 * np.log(shares) + 47 * np.log(1 - 2 * shares - bound)
    lost = shares[likelihood.argmax()]
    expected = (9 - 4 - 60 * bound) / math.sqrt(60 * (2 * lost + bound * (1 - bound)))
    assert counts._score(bound) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("bound", [0.0, -0.01])
def test_a_true_gain_at_the_bound_is_called_larger_as_seldom_as_asked(bound: float) -> None:
    draw = np.random.default_rng(1).multinomial(2_000, [0.03 + bound, 0.03, 0.94 - bound], size=20_000)
    found = [PairedCounts(won, lost, 2_000).p_value(bound) <= 0.05 for won, lost, _ in draw.tolist()]
    assert 0.035 <= np.mean(found) <= 0.0545  # 0.05 and three standard errors; the exact test is below


def test_rows_needed_would_decide_as_often_as_said() -> None:
    rows = PairedCounts(30, 20, 1_000).rows_needed(0.0, 0.025)
    draw = np.random.default_rng(1).multinomial(rows, [0.03, 0.02, 0.95], size=4_000).tolist()
    assert np.mean([PairedCounts(won, lost, rows).p_value() <= 0.025 for won, lost, _ in draw]) == pytest.approx(
        0.8, abs=0.03
    )
    assert PairedCounts(20, 30, 1_000).rows_needed(0.0, 0.025) is None
    # Five coins that fall on one side are rarer than 0.05.
    assert rows_needed(0.5, 0.0, 0.05) == 5


def test_models_that_never_differ_still_need_rows_to_show_a_margin() -> None:
    equal = PairedCounts(0, 0, 50)
    assert equal.p_value(-0.01) > 0.025
    rows = equal.rows_needed(-0.01, 0.025)
    assert PairedCounts(0, 0, rows).p_value(-0.01) <= 0.025 < PairedCounts(0, 0, rows // 4).p_value(-0.01)


@pytest.mark.parametrize(("rows", "bound", "lost"), [(2_000, 0.005, 0.001), (2_000, -0.01, 0.012), (300, 0.03, 0.01)])
@pytest.mark.parametrize("level", [0.025, 0.001, 0.0001])
def test_a_true_gain_of_what_was_asked_for_is_seldom_called_more(
    rows: int, bound: float, lost: float, level: float
) -> None:
    # Exactly, by adding up the probabilities of all counts.
    won_share, found = lost + bound, 0.0
    for won in range(int(rows * won_share + 12 * math.sqrt(rows * won_share)) + 12):
        chance = float(binom.pmf(won, rows, won_share))
        for one in range(int(rows * lost + 6 * math.sqrt(rows * lost)) + 6) if chance > level * 1e-6 else ():
            if PairedCounts(won, one, rows).p_value(bound) > level:
                break
            found += chance * float(binom.pmf(one, rows - won, lost / (1 - won_share)))
    assert found <= 1.3 * level
