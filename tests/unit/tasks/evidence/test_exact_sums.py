"""Sums that add up exactly."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.evidence.sequential import Sums, exact_sum

SCORES = st.floats(-1e60, 1e60, allow_nan=False)


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    units = draw(st.integers(0, 6))
    champion, challenger = (draw(arrays(np.float64, units, elements=SCORES)) for _ in range(2))
    sizes = draw(arrays(np.float64, units, elements=st.integers(1, 10**6)))
    return Sums.of(champion, challenger, sizes)


@settings(deadline=None, max_examples=60)
@given(arrays(np.float64, st.integers(0, 30), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_a_sum_is_exact(values: np.ndarray[Any, Any]) -> None:
    assert exact_sum(values) == sum(map(Fraction, values.tolist()))


def test_many_values_are_added_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.evidence.sequential._CHUNK", 7)
    values = np.random.default_rng(1).normal(size=100)
    assert exact_sum(values) == sum(map(Fraction, values.tolist()))


def test_counts_have_the_sums_of_their_rows() -> None:
    champion, challenger = np.array([0.0] * 4 + [1] * 2 + [1] * 5), np.array([1.0] * 4 + [0] * 2 + [1] * 5)
    assert Sums.of_counts(4, 2, 5) == Sums.of(champion, challenger, np.ones(11))
    assert Sums.of_counts(0, 0, 0) == Sums()


def test_gains_beyond_a_bound_are_relative_to_the_largest_loss_that_is_expected() -> None:
    found = Sums.of(np.array([1.0, 3]), np.array([2.0, 7]), np.array([1.0, 4]))  # scores from 1 to 7, gains of 1 and 4
    assert found.beyond(0.0) == pytest.approx((5 / 6, 17 / 36))
    assert found.beyond(0.0, -1) == pytest.approx((-5 / 6, 17 / 36))
    # The unit of 4 rows can fall short of 0.5 a row by 2 more.
    assert found.beyond(0.5) == pytest.approx((2.5 / 8, (0.5**2 + 2**2) / 8**2))
    assert found.beyond(0.5, -1) == pytest.approx((-2.5 / 6, (0.5**2 + 2**2) / 6**2))
    assert found.beyond(-0.5, -1) == pytest.approx((-7.5 / 8, (1.5**2 + 6**2) / 8**2))


def test_equal_scores_tell_no_size() -> None:
    assert Sums.of(np.full(500, 0.1), np.full(500, 0.1), np.ones(500)).beyond(-0.01, 1) is None


@settings(deadline=None, max_examples=60)
@given(sums(), sums())
def test_what_was_written_is_read(first: Sums, second: Sums) -> None:
    for one in (first, first + second):
        assert Sums.from_json(json.loads(json.dumps(one.to_json()))) == one


GOOD = Sums.of(np.array([0.25, 3.0]), np.array([0.5, 2.5]), np.array([1.0, 2.0])).to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"units": -1}, {"units": 0}, {"units": 4}, {"units": True}, {"units": 2.0}, {"units": 10**16}, {"units": "2"},
        {"rows": -3}, {"rows": 300}, {"rows": 1}, {"rows": "3"}, {"rows": 3.0}, {"rows": None}, {"rows": float("nan")},
        {"gains": "3/0"}, {"gains": "nan"}, {"gains": 3}, {"gains": "-2/8"}, {"gains": "1/3"}, {"gains": "9" * 700},
        {"gains": "-1/4\n"}, {"gains": "\u0663"}, {"gains": "-1/-4"}, {"gains": ""},
        {"gains": "100"}, {"gains": "-100"}, {"gains": "1e3"}, {"squares": "-1"}, {"squares": "0"}, {"squares": "99"},
        {"products": "1000"}, {"squared_rows": "1"}, {"squared_rows": "99"}, {"most_rows": 0}, {"most_rows": 9},
        {"lowest": float("nan")}, {"lowest": float("-inf")}, {"highest": float("inf")}, {"highest": "3"},
        {"highest": 1e61}, {"highest": -1.0}, {"highest": 0.5}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_sums_that_no_rows_have_are_refused(change: dict[str, Any]) -> None:
    assert Sums.from_json(GOOD)
    with pytest.raises(ValueError, match="whole number|fraction|score can be|no rows have|missing or unknown"):
        Sums.from_json({**GOOD, **change})


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"units": 0}], ids=str)
def test_what_is_not_sums_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="missing or unknown"):
        Sums.from_json(value)
