"""One model that is right or wrong on each row, against a bound: exact (Clopper and Pearson 1934)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scipy.special import bdtr, bdtrc, betaincinv

from data_contracts.records import Interval
from tasks.evidence.paired_counts import rows_needed


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
