"""Two models that are right or wrong on each row: the test and the interval of the difference.

Only the rows on which they disagree say which of them is better (McNemar 1947). Where the question is whether one is
better at all, the test is exact: under equal models each of those rows is a fair coin. Where a difference other than
zero is asked for, it is the score test for paired proportions (Tango 1998), whose inverse is the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import bdtrc, ndtr, ndtri

from data_contracts.records import Interval
from tasks.evidence import student

_HALF_A_ROW = 0.5


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
            return 1.0 if self.rows < 2 or gain <= bound else student.least_p_value(self.rows)  # it won on every row
        third = won * (1 - gain) ** 3 - lost * (1 + gain) ** 3 - (1 - won - lost) * gain**3
        fourth = won * (1 - gain) ** 4 + lost * (1 + gain) ** 4 + (1 - won - lost) * gain**4
        deviation = math.sqrt(variance * self.rows / (self.rows - 1))
        return student.student_p_value(
            self.rows, (gain - bound) / deviation, third / deviation**3, fourth / deviation**4
        )

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
