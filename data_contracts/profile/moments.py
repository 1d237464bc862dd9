"""Sums of values and of their squares, in an order that the values' positions alone decide.

Blocks of values are summed about the part's first value by halving: element-wise additions, which every machine
rounds in the same way. Blocks and parts are then added exactly, so their order does not matter.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from data_contracts.profile.buffers import FIRST, SECOND, buffer
from data_contracts.profile.record import Dyadic, Moments

# Values that wait in all columns together, and in one, until they are a block.
_WAITING = 1 << 22
_LARGEST = 1 << 16

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# float64 holds every whole number up to here.
_EXACT = 2**53


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
            distance = np.subtract(block, self._centre, out=buffer(FIRST, len(block)).view(np.float64))
            squares = np.multiply(distance, distance, out=buffer(SECOND, len(block)).view(np.float64))
            self._count += len(block)
            self._totals.append(_halved(distance))
            self._squares.append(_halved(squares))

    def add_whole(self, numbers: Ints, counts: Ints, first: int) -> bool:
        """Add a block of whole numbers by their counts, if no order of additions would round; else False.

        Args:
            numbers: ascending.
            first: the first value of the block.
        """
        centre = first if self._centre is None else self._centre
        if centre != int(centre) or abs(centre) > _EXACT:
            return False
        distance = numbers - int(centre)
        furthest, count = max(-int(distance[0]), int(distance[-1])), int(counts.sum())
        if furthest * furthest * count > _EXACT:
            return False
        self._centre = float(centre)
        self._count += count
        self._totals.append(float(distance @ counts))
        self._squares.append(float((distance * distance) @ counts))
        return True

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


class MomentSum:
    """Adds up the sums of parts, exactly."""

    def __init__(self) -> None:
        self._count, self._total, self._squares = 0, (0, 0), (0, 0)

    def add(self, part: Moments) -> None:
        """Add a part."""
        self._count += part.count
        self._total, self._squares = _added(self._total, part.total), _added(self._squares, part.squares)

    def record(self) -> Moments | None:
        """The sums of all parts together; None without parts."""
        if not self._count:
            return None
        return Moments(count=self._count, total=_shortest(self._total), squares=_shortest(self._squares))


def _added(one: Dyadic, other: Dyadic) -> Dyadic:
    exponent = min(one[1], other[1])
    return (one[0] << (one[1] - exponent)) + (other[0] << (other[1] - exponent)), exponent


def _shortest(value: Dyadic) -> Dyadic:
    """As `exact` gives it: with an odd mantissa."""
    mantissa, exponent = value
    if not mantissa:
        return 0, 0
    zeros = (mantissa & -mantissa).bit_length() - 1
    return mantissa >> zeros, exponent + zeros


def mean_and_stdev(moments: Moments) -> tuple[float, float]:
    """Mean and standard deviation (divided by the number of values)."""
    mean = fraction(moments.total) / moments.count
    variance = fraction(moments.squares) / moments.count - mean * mean
    return float(mean), math.sqrt(max(variance, Fraction()))


def _halved(values: Floats) -> float:
    """The sum, by adding the second half to the first until one value is left; `values` are overwritten."""
    size = 1 << max(len(values) - 1, 0).bit_length()
    if size != len(values):
        values = np.concatenate([values, np.zeros(size - len(values))])
    while size > 1:
        size //= 2
        np.add(values[:size], values[size : 2 * size], out=values[:size])
    return float(values[0])
