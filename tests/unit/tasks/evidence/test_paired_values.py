"""The difference of two models with a number for each row, or each unit of rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.evidence.significance import PairedValues


def values(*gains: float) -> PairedValues:
    return PairedValues(np.array(gains))


@pytest.mark.parametrize("gain", [0.1, 1 / 3, 1e-9, 1e9])
def test_equal_gains_on_every_row_say_nothing_of_other_rows(gain: float) -> None:
    # The mean of equal numbers is rounded: neither that nor their spread of 1e-17 decides.
    equal = PairedValues(np.full(700, gain))
    assert equal.p_value() == equal.p_value(-gain) == equal.p_value(gain) == equal.p_value(2 * gain) == 1
    assert PairedValues(np.full(7, -gain)).p_value() == 1
    assert values(gain).p_value() == values(gain).p_value(-1) == 1, "one row says nothing"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gain_that_is_no_number_says_nothing(bad: float) -> None:
    with np.errstate(invalid="ignore"):
        assert (values(1, 2, 3, bad).p_value(), values(1, 2, 3, bad).p_value(-5)) == (1, 1)


def test_units_that_gain_in_step_with_their_size_gained_as_much_on_each_row() -> None:
    sizes = np.array([1.0, 2, 5, 9, 30])
    found = PairedValues(0.1 * sizes, sizes)
    assert (found.rows, found.gain) == (47, pytest.approx(0.1))
    # The sizes may be as they are by chance.
    assert 0.5**5 <= found.p_value() < 0.25
    assert found.p_value(0.1) == 1


def test_units_count_and_not_their_rows() -> None:
    gains = np.random.default_rng(1).normal(0.2, 1, 40)
    repeated = PairedValues(50 * gains, np.full(40, 50.0))
    assert (repeated.rows, repeated.p_value()) == (2_000, pytest.approx(PairedValues(gains).p_value()))
    assert repeated.p_value() > 1_000 * PairedValues(np.repeat(gains, 50)).p_value()
    wide, narrow = repeated.interval(0.9), PairedValues(np.repeat(gains, 50)).interval(0.9)
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def few_units(draw: np.random.Generator) -> PairedValues:
    sizes = draw.geometric(0.1, 20).astype(np.float64)
    return PairedValues((draw.normal(size=20) + 0.05) * sizes, sizes)


def covered(case: Callable[[np.random.Generator, int], NDArray[np.float64]], mean: float, rows: int) -> float:
    """How often an interval of 90 % of the mean of so many values has the true mean."""
    draw = np.random.default_rng(7)
    found = [PairedValues(case(draw, rows)).interval(0.9) for _ in range(1_500)]
    return float(np.mean([one.low <= mean <= one.high for one in found]))


CASES: dict[str, tuple[Callable[[np.random.Generator, int], NDArray[np.float64]], float]] = {
    "normal": (lambda draw, rows: draw.normal(size=rows), 0.0),
    "exponential": (lambda draw, rows: draw.exponential(size=rows), 1.0),
    "lognormal": (lambda draw, rows: draw.lognormal(size=rows), math.exp(0.5)),
    "its negative": (lambda draw, rows: -draw.lognormal(size=rows), -math.exp(0.5)),
    "very skewed": (lambda draw, rows: draw.lognormal(0, 1.5, rows), math.exp(1.125)),
    "heavy tails": (lambda draw, rows: draw.standard_t(3, size=rows), 0.0),
    "few wins": (lambda draw, rows: draw.choice([-1.0, 0.0, 1.0], rows, p=[0.05, 0.85, 0.1]), 0.05),
}


@pytest.mark.parametrize("rows", [100, 150, 400])
@pytest.mark.parametrize("case", CASES)
def test_an_interval_covers_as_often_as_it_says(case: str, rows: int) -> None:
    assert covered(*CASES[case], rows) >= 0.9 - 3 * math.sqrt(0.09 / 1_500)


def test_rows_without_a_spread_have_no_interval() -> None:
    found = PairedValues(np.full(50, 0.25)).interval(0.9)
    assert (found.low, found.high, found.method) == (0.25, 0.25, "no spread, so no interval")


@pytest.mark.parametrize(
    "case",
    [
        lambda draw: PairedValues(draw.exponential(size=30) - draw.exponential(size=30) + 0.05),
        lambda draw: PairedValues(1 - draw.exponential(size=500) + 0.05),
        few_units,
    ],
    ids=["losses", "skewed", "few units"],
)
@pytest.mark.parametrize("level", [0.05, 0.001])
def test_a_true_gain_at_the_bound_is_called_larger_as_seldom_as_asked(
    case: Callable[[np.random.Generator], PairedValues], level: float
) -> None:
    draw = np.random.default_rng(3)
    found = [case(draw).p_value(0.05) <= level for _ in range(8_000)]
    assert np.mean(found) <= level + 3 * math.sqrt(level * (1 - level) / 8_000)


def test_rows_needed_would_decide_as_often_as_said() -> None:
    draw = np.random.default_rng(5)
    seen = PairedValues(draw.normal(0.1, 1, 400))
    rows = seen.rows_needed(0.0, 0.01)
    decided = [PairedValues(draw.normal(seen.gain, seen.gains.std(), rows)).p_value() <= 0.01 for _ in range(2_000)]
    assert np.mean(decided) == pytest.approx(0.8, abs=0.04)
    assert seen.rows_needed(1.0, 0.01) is None
