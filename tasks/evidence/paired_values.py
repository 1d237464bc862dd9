"""Two models with a number for each row, such as a loss: the test and the interval of the difference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_contracts.records import Interval
from tasks.evidence import student
from tasks.evidence.paired_counts import rows_needed


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
            return student.influence_p_value(self._influence, self.gain, bound)
        # Units of a true gain of `bound`: about the measured gain, large units would seem to vary less than they do.
        beyond = self.gains - bound * self.sizes
        mean_size = self.rows / len(self.gains)
        return student.influence_p_value(beyond / mean_size, self.gain, bound)

    def interval(self, confidence: float) -> Interval:
        """The interval of the mean gain, from each unit's influence on it."""
        return student.influence_interval(self._influence, self.gain, confidence)

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
