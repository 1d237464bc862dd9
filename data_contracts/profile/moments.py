"""Sums of values and of their squares, in an order that the values' positions alone decide.

Blocks of values are summed about the part's first value by halving: element-wise additions, which every machine
rounds in the same way. Blocks and parts are then added exactly, so their order does not matter.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from data_contracts.profile.record import Dyadic, Moments

# Values that wait in all columns together, and in one, until they are a block.
_WAITING = 1 << 22
_LARGEST = 1 << 16

Floats = NDArray[np.float64]


def block_of(columns: int) -> int:
    """Values in a block of a table with this number of columns: it follows from the data, so it changes no result."""
    return min(_LARGEST, 1 << max(_WAITING // max(columns, 1), 1).bit_length() - 1)


def exact(value: Fraction) -> Dyadic:
    """A fraction whose denominator is a power of two, as mantissa and exponent."""
    mantissa, exponent = value.numerator, 1 - value.denominator.bit_length()
    if mantissa and exponent == 0:
        exponent = (mantissa & -mantissa).bit_length() - 1
        mantissa >>= exponent
    return mantissa, exponent


def fraction(value: Dyadic) -> Fraction:
    """What `exact` was given."""
    mantissa, exponent = value
    return Fraction(mantissa) * (Fraction(2) ** exponent)


class MomentCounter:
    """Adds up finite values of one part, block by block."""

    def __init__(self) -> None:
        self._centre: float | None = None
        self._count = 0
        self._totals: list[float] = []
        self._squares: list[float] = []

    def add(self, block: Floats) -> None:
        """Add the finite values of a block."""
        if not len(block):
            return
        if self._centre is None:
            self._centre = float(block[0])
        with np.errstate(over="ignore", invalid="ignore"):
            distance = block - self._centre
            self._count += len(block)
            self._totals.append(_halved(distance))
            self._squares.append(_halved(distance * distance))

    def record(self) -> Moments | None:
        """The sums; None without values, or if they are too large for float64."""
        if self._centre is None or not all(map(math.isfinite, (*self._totals, *self._squares))):
            return None
        centre, count = Fraction(self._centre), self._count
        total, squares = sum(map(Fraction, self._totals)), sum(map(Fraction, self._squares))
        return Moments(
            count=count,
            total=exact(total + count * centre),
            squares=exact(squares + 2 * centre * total + count * centre * centre),
        )


def merged(parts: list[Moments]) -> Moments:
    """The sums of all parts together."""
    return Moments(
        count=sum(one.count for one in parts),
        total=exact(sum((fraction(one.total) for one in parts), Fraction())),
        squares=exact(sum((fraction(one.squares) for one in parts), Fraction())),
    )


def mean_and_stdev(moments: Moments) -> tuple[float, float]:
    """Mean and standard deviation (divided by the number of values)."""
    mean = fraction(moments.total) / moments.count
    variance = fraction(moments.squares) / moments.count - mean * mean
    return float(mean), math.sqrt(max(variance, Fraction()))


def _halved(values: Floats) -> float:
    """The sum, by adding the second half to the first until one value is left."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    if size != len(values):
        values = np.concatenate([values, np.zeros(size - len(values))])
    while size > 1:
        size //= 2
        values = values[:size] + values[size:]
    return float(values[0])
