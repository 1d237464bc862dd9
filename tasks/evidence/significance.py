"""Significance tests of scores on each row: p-value, confidence interval, and the rows that would decide.

`PairedCounts`: two models that are right or wrong on each row. Only the rows on which they disagree say which of them
is better (McNemar 1947). Where the question is whether one is better at all, the test is exact: under equal models each
of those rows is a fair coin. Where a difference other than zero is asked for, it is the score test for paired
proportions (Tango 1998), whose inverse is the interval.

`PairedValues`: two models with a number for each row, such as a loss. `Proportion`: one model that is right or wrong on
each row, against a bound: exact (Clopper and Pearson 1934).

Means are tested by Student's t, made cautious for values that are skewed or have heavy tails, far out in the tail.
Three things are asked of "the true mean is above the bound", and the least certain answer counts: Student's statistic;
the same corrected for skewness (Hall 1992), which asks for more where few large losses may be missing from the sample;
and as many degrees of freedom as the variance was estimated with, which is few where few values make up most of it
(Satterthwaite 1946, with the sample's kurtosis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc, betaincinv, ndtr, ndtri, stdtr, stdtrit

from data_contracts.records import Interval

_HALF_A_ROW = 0.5
# Relative to the values: numbers that differ by less are equal, and were rounded.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedCounts:
    """On how many rows only the candidate was right, on how many only the champion, and how many rows there are."""

    won: int
    lost: int
    rows: int

    @property
    def gain(self) -> float:
        """The candidate's share of right rows minus the champion's."""
        return (self.won - self.lost) / self.rows

    def p_value(self, bound: float = 0.0) -> float:
        """How likely a gain at least this large is, if the true gain is not above `bound`."""
        if bound == 0:
            return float(bdtrc(self.won - 1, self.won + self.lost, 0.5)) if self.won else 1.0
        of_score = float(ndtr(-self._score(bound)))
        # Where losses are rare, the score test alone finds gains above a positive bound up to three times too often.
        return max(of_score, self._of_student(bound)) if bound > 0 else of_score

    def interval(self, confidence: float) -> Interval:
        """Tango's score interval of the gain, with half a row more on each side: without it, an interval of 90 % covers
        0.87 where the models differ on a few of some hundred rows.
        """
        wanted = float(ndtri((1 + confidence) / 2))

        def limit(sign: int) -> float:
            edge = float(sign)
            if self._score(edge * (1 - 1e-12), _HALF_A_ROW) * -sign <= wanted:
                return edge
            return float(
                brentq(lambda at: self._score(at, _HALF_A_ROW) * -sign - wanted, self.gain, edge * (1 - 1e-12))
            )

        return Interval(limit(-1), limit(1), confidence, "Tango's score interval with a continuity correction")

    def rows_needed(self, bound: float, level: float, power: float = 0.8) -> int | None:
        """How many rows would decide with this gain and as many disagreements per row; None if it is not above `bound`.

        Args:
            level: of the test, one-sided.
            power: how likely they would decide.
        """
        # Under a true gain of the bound, the models differ on as many rows at least.
        variances = (self.won + self.lost) / self.rows - self.gain**2, abs(bound) - bound**2
        return rows_needed(self.gain - bound, max(*variances, 0.0) ** 0.5, level, power)

    def _of_student(self, bound: float) -> float:
        won, lost, gain = self.won / self.rows, self.lost / self.rows, self.gain
        variance = won + lost - gain**2
        if self.rows < 2 or variance <= 0:
            return 1.0 if self.rows < 2 or gain <= bound else least_p_value(self.rows)  # it won on every row
        third = won * (1 - gain) ** 3 - lost * (1 + gain) ** 3 - (1 - won - lost) * gain**3
        fourth = won * (1 - gain) ** 4 + lost * (1 + gain) ** 4 + (1 - won - lost) * gain**4
        deviation = math.sqrt(variance * self.rows / (self.rows - 1))
        return student_p_value(self.rows, (gain - bound) / deviation, third / deviation**3, fourth / deviation**4)

    def _score(self, bound: float, nearer: float = 0.0) -> float:
        """Tango's statistic for a true gain of `bound`: standard normal in large samples; `nearer` by so many rows."""
        won, lost, rows = self.won, self.lost, self.rows
        # The most likely share of rows lost under that gain.
        half = -won - lost + (2 * rows - won + lost) * bound
        rest = -lost * bound * (1 - bound)
        share = (math.sqrt(max(half * half - 8 * rows * rest, 0.0)) - half) / (4 * rows)
        variance = rows * (2 * share + bound * (1 - bound))
        off = won - lost - rows * bound
        off = math.copysign(max(abs(off) - nearer, 0.0), off)
        if variance <= 0:
            return 0.0 if off == 0 else math.copysign(math.inf, off)
        return off / math.sqrt(variance)


def rows_needed(beyond: float, deviation: float, level: float, power: float = 0.8) -> int | None:
    """How many rows would show a gain, one-sided.

    Args:
        beyond: by how much the gain lies above what was asked for; None is returned if it does not.
        deviation: standard deviation of a row's difference.
    """
    if beyond <= 0:
        return None
    rows = ((float(ndtri(1 - level)) + float(ndtri(power))) * deviation / beyond) ** 2
    return math.ceil(max(rows, -math.log2(level)))  # fewer decide nothing, as coins that all fall on one side


@dataclass(frozen=True, eq=False)
class PairedValues:
    """By how much the candidate is better than the champion on each row, or each unit of rows.

    Attributes:
        gains: (units,) sum over the unit's rows; positive where the candidate is better.
        sizes: (units,) number of the unit's rows; None if each is one row.
    """

    gains: NDArray[np.float64]
    sizes: NDArray[np.float64] | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.gains) if self.sizes is None else int(self.sizes.sum())

    @cached_property
    def gain(self) -> float:
        """The mean gain of a row."""
        return math.fsum(self.gains.tolist()) / self.rows

    def p_value(self, bound: float = 0.0) -> float:
        """How likely a gain at least this large is, if the true gain is not above `bound`."""
        if self.sizes is None:
            return influence_p_value(self._influence, self.gain, bound)
        # Units of a true gain of `bound`: about the measured gain, large units would seem to vary less than they do.
        beyond = self.gains - bound * self.sizes
        return influence_p_value(beyond / (self.rows / len(self.gains)), self.gain, bound)

    def interval(self, confidence: float) -> Interval:
        """The interval of the mean gain, from each unit's influence on it."""
        return influence_interval(self._influence, self.gain, confidence)

    def rows_needed(self, bound: float, level: float, power: float = 0.8) -> int | None:
        """How many rows would decide with this gain and spread; None if it is not above `bound`."""
        units = rows_needed(self.gain - bound, float(self._influence.std()), level, power)
        return None if units is None else math.ceil(units * self.rows / len(self.gains))

    @cached_property
    def _influence(self) -> NDArray[np.float64]:
        """(units,) how much each unit moves the mean gain of a row, times the number of units; their mean is 0."""
        if self.sizes is None:
            return self.gains - self.gain
        return (self.gains - self.gain * self.sizes) * (len(self.gains) / self.rows)


@dataclass(frozen=True)
class Proportion:
    """On how many rows an outcome was 1, and whether a larger (1) or a smaller (-1) share is asked for."""

    count: int
    rows: int
    sign: Literal[1, -1] = 1

    @property
    def gain(self) -> float:
        """The share; negative if a smaller one is required."""
        return self.sign * self.count / self.rows

    def p_value(self, bound: float = 0.0) -> float:
        """How likely such a share is, if the true one, times `sign`, is not above `bound`."""
        limit = self.sign * bound
        if not 0 <= limit <= 1:  # no share is below 0 or above 1
            return 0.0 if (limit < 0) == (self.sign > 0) else 1.0
        if self.sign > 0:
            return float(bdtrc(self.count - 1, self.rows, limit)) if self.count else 1.0
        return float(bdtr(self.count, self.rows, limit))

    def interval(self, confidence: float) -> Interval:
        """The Clopper-Pearson interval of the share, times `sign`."""
        count, rest, tail = self.count, self.rows - self.count, (1 - confidence) / 2
        low = float(betaincinv(count, rest + 1, tail)) if count else 0.0
        high = float(betaincinv(count + 1, rest, 1 - tail)) if rest else 1.0
        low, high = sorted((self.sign * low, self.sign * high))
        return Interval(low, high, confidence, "Clopper-Pearson interval")

    def rows_needed(self, bound: float, level: float, power: float = 0.8) -> int | None:
        """How many rows would decide with this share; None if it is not beyond `bound`."""
        # The spread of a share at the bound counts, too: one of 0 or 1 has none.
        shares = (self.count / self.rows, self.sign * bound)
        deviation = max(max(one * (1 - one), 0.0) ** 0.5 for one in shares)
        return rows_needed(self.gain - bound, deviation, level, power)


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
