"""Student's t test of a mean, made cautious for values that are skewed or have heavy tails, far out in the tail.

Three things are asked of "the true mean is above the bound", and the least certain answer counts: Student's statistic;
the same corrected for skewness (Hall 1992), which asks for more where few large losses may be missing from the sample;
and as many degrees of freedom as the variance was estimated with, which is few where few values make up most of it
(Satterthwaite 1946, with the sample's kurtosis).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from data_contracts.records import Interval

# Relative to the values: numbers that differ by less are equal, and were rounded.
_ROUNDING = 1e-12


def influence_p_value(influence: NDArray[np.float64], gain: float, bound: float) -> float:
    """How likely a gain at least this large is, if the true gain is not above `bound`.

    Args:
        influence: (units,) how much each unit moves the gain, times their number.
    """
    units = len(influence)
    deviation = float(influence.std(ddof=1)) if units > 1 else math.nan
    if not (math.isfinite(gain) and math.isfinite(deviation)):
        return 1.0
    if deviation <= _ROUNDING * max(abs(gain), abs(bound)):  # without a spread nothing tells how far chance goes
        return 1.0
    moved = (influence - influence.mean()) / deviation
    square = moved**2
    return student_p_value(units, (gain - bound) / deviation, float(np.mean(square * moved)), float(np.mean(square**2)))


def influence_interval(influence: NDArray[np.float64], gain: float, confidence: float) -> Interval:
    """The gains that neither one-sided test rules out, but for `least_p_value`, which would leave no end where few
    values make up most of the variance; arguments as of `influence_p_value`.
    """
    units = len(influence)
    deviation = float(influence.std(ddof=1)) if units > 1 else 0.0
    if deviation <= _ROUNDING * abs(gain):
        return Interval(gain, gain, confidence, "no spread, so no interval")
    moved = (influence - influence.mean()) / deviation
    skewness, kurtosis = float(np.mean(moved**3)), float(np.mean(moved**4))
    tail = float(stdtrit(_freedom(units, kurtosis), (1 + confidence) / 2)) / math.sqrt(units)
    low, high = (_distance(units, tail, sign * skewness) * deviation for sign in (1, -1))
    return Interval(gain - low, gain + high, confidence, "Student's t, corrected for skewness")


def _distance(units: int, tail: float, skewness: float) -> float:
    """How far below the mean the bound lies whose p-value is that of `tail`, in standard deviations of a value."""
    if abs(skewness) < _ROUNDING:
        return tail
    # The inverse of the correction in `student_p_value`.
    return max(tail, 3 * (float(np.cbrt(1 + skewness * tail - skewness**2 / (6 * units))) - 1) / skewness)


def student_p_value(units: int, distance: float, skewness: float, kurtosis: float) -> float:
    """How likely a mean at least this far above the bound is, if the true mean is not above it.

    Args:
        units: independent values that the mean is of.
        distance: of the mean from the bound, in standard deviations of a value.
        skewness, kurtosis: of the values; the kurtosis of a normal distribution is 3.
    """
    corrected = distance + skewness * distance**2 / 3 + skewness**2 * distance**3 / 27 + skewness / (6 * units)
    freedom = _freedom(units, kurtosis)
    return max(least_p_value(freedom + 1), float(stdtr(freedom, -math.sqrt(units) * min(distance, corrected))))


def _freedom(units: int, kurtosis: float) -> float:
    return min(units - 1.0, max(1.0, 2 * units / max(kurtosis - 1, 1.0)))


def least_p_value(units: float) -> float:
    """The smallest p-value that so many values can give: that of as many coins, if all of them fell on one side."""
    return 0.5**units
