"""Sums of powers that add up exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evidence.exact_sums import Moments, exact_sum

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(DOUBLES, max_size=30))
def test_a_sum_is_exact(values: list[float]) -> None:
    assert exact_sum(np.array(values, np.float64)) == sum(map(Fraction, values))


def test_many_values_are_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.evidence.exact_sums._PIECE", 7)
    values = np.random.default_rng(1).normal(size=100)
    assert exact_sum(values) == sum(map(Fraction, values.tolist()))


def test_moments_are_those_of_the_values() -> None:
    values = np.random.default_rng(2).exponential(size=500)
    found = Moments.of(values, np.ones(500)).beyond(0.25)
    moved = (values - values.mean()) / values.std()
    assert found.mean == pytest.approx(values.mean() - 0.25)
    assert found.deviation == pytest.approx(values.std())
    assert found.skewness == pytest.approx((moved**3).mean())
    assert found.kurtosis == pytest.approx((moved**4).mean())


def test_counts_have_the_sums_of_their_rows() -> None:
    gains = np.array([1.0] * 4 + [-1.0] * 2 + [0.0] * 5)
    assert Moments.of_counts(4, 2, 5) == Moments.of(gains, np.ones(11))
