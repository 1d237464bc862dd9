"""One model's share of rows against a bound, exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from tasks.evidence.significance import Proportion


@given(st.integers(1, 400), st.floats(0, 1), st.floats(0.001, 0.999))
def test_test_and_interval_are_those_of_scipy(rows: int, part: float, bound: float) -> None:
    count = round(part * rows)
    above, below = Proportion(count, rows), Proportion(count, rows, -1)
    assert above.p_value(bound) == pytest.approx(binomtest(count, rows, bound, "greater").pvalue, abs=1e-12)
    assert below.p_value(-bound) == pytest.approx(binomtest(count, rows, bound, "less").pvalue, abs=1e-12)
    wanted = binomtest(count, rows).proportion_ci(0.9, "exact")
    found = above.interval(0.9)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high))
    mirrored = below.interval(0.9)
    assert (-mirrored.high, -mirrored.low) == (found.low, found.high)
    assert above.gain == -below.gain == count / rows


@pytest.mark.parametrize("count", [0, 7, 20])
def test_bounds_that_no_share_reaches(count: int) -> None:
    above, below = Proportion(count, 20), Proportion(count, 20, -1)
    assert (above.p_value(-0.1), above.p_value(1.0), above.p_value(1.1)) == (0, 1, 1)
    assert (below.p_value(-1.1), below.p_value(0.0), below.p_value(0.1)) == (0, 1, 1)


@pytest.mark.parametrize("bound", [0.5, 0.9, 0.99])
def test_a_share_at_the_bound_is_never_called_above_it_more_often_than_asked(bound: float) -> None:
    counts = np.arange(201)
    met = [Proportion(int(one), 200).p_value(bound) <= 0.01 for one in counts]
    assert float(binom.pmf(counts, 200, bound)[met].sum()) <= 0.01


def test_rows_needed_would_decide_as_often_as_said() -> None:
    rows = Proportion(920, 1_000).rows_needed(0.9, 0.025)
    counts = np.random.default_rng(2).binomial(rows, 0.92, 2_000).tolist()
    assert np.mean([Proportion(one, rows).p_value(0.9) <= 0.025 for one in counts]) == pytest.approx(0.8, abs=0.05)
    assert Proportion(890, 1_000).rows_needed(0.9, 0.025) is None
    # Without any error the rows that are needed are those that could have shown one.
    assert 30 < Proportion(30, 30).rows_needed(0.9, 0.025) < 80
