"""Decides whether a metric is the mean of its outcomes, by computing it on parts of the set.

A macro average over two classes of nearly the same size is close to a mean over rows without being one. So closeness
over the whole set proves nothing: a metric counts as a mean only if it is one in every checked part, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

SINGLE = 2.0**-23
DOUBLE = 1e-12
# An outcome in single precision is rounded several times; a sum in single precision once for each batch.
_FEW_ROUNDINGS = 4
_COARSEST = 1e-5
_PART, _LOWEST, _HIGHEST, _PARTS = 7, 2, 2, 4


@dataclass
class Outcomes:
    """Outcomes of one metric on one set: a value and a number of rows per unit."""

    unit: str
    values: list[float]
    rows: list[int]

    def mean(self) -> float:
        """The mean of the outcomes, weighted by their rows."""
        return mean(self.values, self.rows)

    def has_mean(self, value: float, additions: int = 0, in_double: bool = False) -> bool:
        """Whether `value` is the mean of the outcomes.

        Args:
            additions: how many batches were added up in single precision to get `value`.
            in_double: whether `value` was computed in double precision; outcomes that are counts then must agree to it,
                others to single precision.
        """
        if in_double:
            whole = all(map(float.is_integer, self.values))
            return close(self.values, self.rows, value, DOUBLE if whole else SINGLE)
        return close(self.values, self.rows, value, min(_COARSEST, max(_FEW_ROUNDINGS, additions) * SINGLE))


def mean(values: Sequence[float], rows: Sequence[int]) -> float:
    """The mean of `values`, weighted by `rows`."""
    return math.fsum(v * n for v, n in zip(values, rows, strict=True)) / max(1, sum(rows))


def close(values: Sequence[float], rows: Sequence[int], value: float, precision: float = _COARSEST) -> bool:
    """Whether `value` is the mean of `values`, within `precision` of their mean size; False if any is not finite."""
    if not all(map(math.isfinite, (value, *values))):
        return False
    return abs(mean(values, rows) - value) <= precision * mean([abs(one) for one in values], rows)


def parts(values: Sequence[float]) -> list[list[int]]:
    """Positions of a few small parts of a batch that reveal a metric which is not a mean of these outcomes.

    Each part holds outcomes as different as possible, drawn at random among equal ones. Seven rows: no number of
    classes divides a prime number of rows evenly.
    """
    draw = random.Random(len(values))
    chosen = []
    for _ in range(_PARTS if len(values) > 1 else 0):
        order = draw.sample(range(len(values)), len(values))
        order.sort(key=values.__getitem__)
        ends = order[:_LOWEST] + order[_LOWEST:][-_HIGHEST:]
        between = order[_LOWEST:-_HIGHEST]
        chosen.append(ends + draw.sample(between, min(len(between), _PART - len(ends))))
    return chosen


def due(batches: int) -> bool:
    """Whether to check all batches so far as one part: after 1, 2, 4, 8, …"""
    return batches & (batches - 1) == 0
