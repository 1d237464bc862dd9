"""Sums of powers of the rows' differences that add up exactly, in any order and over any number of nights.

A sum of floating-point numbers depends on their order, and what a night adds would depend on the nights before it.
Every double is an integer times a power of two, so sums are kept as fractions: adding is exact, and two tallies of the
same rows are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# Powers of a unit's gain and of its rows whose products are summed: what moments up to the fourth are made of.
POWERS = tuple((gain, degree - gain) for degree in range(1, 5) for gain in range(degree, -1, -1))
# The fourth powers of larger scores, and of smaller differences other than 0, would not be doubles.
LARGEST, SMALLEST = 1e60, 1e-70
# The rows that are counted at once; more would not fit the integers in `exact_sum`.
_PIECE = 2**24
_FRACTION = re.compile(r"-?[0-9]{1,900}(/[0-9]{1,900})?", re.ASCII)


@dataclass(frozen=True)
class Moments:
    """Sums over units of rows, of which each may be one row.

    Attributes:
        units: how many.
        sums: of gain**i * rows**j over the units, in the order of `POWERS`.
    """

    units: int = 0
    sums: tuple[Fraction, ...] = (Fraction(0),) * len(POWERS)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.units + other.units, tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)))

    @classmethod
    def of(cls, gains: Values, sizes: Values) -> Moments:
        """The sums over units; `gains` (units,) are summed over a unit's rows, `sizes` (units,) are their numbers."""
        gains = np.where(np.abs(gains) < SMALLEST, 0.0, gains)
        return cls(len(gains), tuple(exact_sum(gains**i * sizes**j) for i, j in POWERS))

    @classmethod
    def of_counts(cls, won: int, lost: int, tied: int) -> Moments:
        """The sums over rows of which each gained 1, -1 or 0."""
        rows = won + lost + tied
        return cls(rows, tuple(Fraction(won + (-1) ** i * lost if i else rows) for i, _ in POWERS))

    @property
    def rows(self) -> int:
        """The number of rows in all units."""
        return int(self.sums[POWERS.index((0, 1))])

    def gain(self) -> Fraction:
        """The mean gain of a row; there is one at least."""
        return self.sums[POWERS.index((1, 0))] / self.rows

    def beyond(self, bound: float) -> Spread:
        """What is known of (a unit's gain - `bound` times its rows); there is one unit at least."""
        mean, second, third, last = (self._raw(degree, Fraction(bound)) / self.units for degree in range(1, 5))
        square = second - mean**2
        cube = third - 3 * mean * second + 2 * mean**3
        fourth = last - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
        if square <= 0:
            return Spread(float(mean), 0.0, 0.0, 1.0)
        deviation = math.sqrt(square)
        skewness = float(cube / square) / deviation
        # Powers were rounded; a kurtosis is never below that of two values (Pearson 1916).
        return Spread(float(mean), deviation, skewness, max(float(fourth / square**2), 1 + skewness**2))

    def _raw(self, degree: int, bound: Fraction) -> Fraction:
        sums = dict(zip(POWERS, self.sums, strict=True))
        terms = (math.comb(degree, i) * sums[i, degree - i] * (-bound) ** (degree - i) for i in range(degree + 1))
        return sum(terms, Fraction(0))

    def to_json(self) -> dict[str, object]:
        """JSON that `from_json` reads; fractions as text, which no reader rounds."""
        sums = {_name(*power): str(one) for power, one in zip(POWERS, self.sums, strict=True)}
        return {"units": self.units, "sums": sums}

    @classmethod
    def from_json(cls, value: object) -> Moments:
        """The sums that `to_json` wrote.

        Raises:
            ValueError: they are not such sums, with the reason.
        """
        if not isinstance(value, Mapping) or set(value) != {"units", "sums"}:
            raise ValueError("it has not exactly the fields units and sums")
        units, sums = counted(value["units"], "units"), value["sums"]
        if not isinstance(sums, Mapping) or set(sums) != {_name(*power) for power in POWERS}:
            raise ValueError("a sum is missing or unknown")
        found = cls(units, tuple(_fraction(sums[_name(*power)]) for power in POWERS))
        found.check()
        return found

    def check(self) -> None:
        """ValueError if no units have these sums."""
        sums = dict(zip(POWERS, self.sums, strict=True))
        rows, units = sums[0, 1], self.units
        if rows.denominator != 1 or not units <= rows <= 10**15 or (units == 0 and any(self.sums)):
            raise ValueError("the number of rows does not fit the number of units")
        # Cauchy and Schwarz, with room for the rounding of the powers.
        more = Fraction(1_000_001, 1_000_000)
        for power in ((1, 0), (0, 1), (2, 0), (0, 2)):
            double = (2 * power[0], 2 * power[1])
            if sums[power] ** 2 > sums[double] * units * more:
                raise ValueError("no rows have such sums")
        if abs(sums[1, 0]) > 2 * Fraction(LARGEST) * rows:
            raise ValueError("a sum is too large")


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation, skewness and kurtosis (3 for a normal distribution) of a number of each unit."""

    mean: float
    deviation: float
    skewness: float
    kurtosis: float


def exact_sum(values: Values) -> Fraction:
    """The sum of finite doubles, (n,), without any rounding."""
    total = Fraction(0)
    for start in range(0, len(values), _PIECE):
        mantissas, exponents = np.frexp(values[start : start + _PIECE])
        different, which = np.unique(exponents, return_inverse=True)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        # Two halves of 26 and 27 bits, whose sums over 2**24 rows are integers that a double holds.
        high, low = np.bincount(which, whole >> 27), np.bincount(which, whole & (2**27 - 1))
        for exponent, upper, lower in zip(different.tolist(), high.tolist(), low.tolist(), strict=True):
            total += Fraction((int(upper) << 27) + int(lower)) * Fraction(2) ** (exponent - 53)
    return total


def counted(value: object, what: str) -> int:
    """A count that was read from JSON; ValueError if it is not a whole number from 0 to 10**15."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**15:
        raise ValueError(f"{what} is not a whole number from 0 to 10**15")
    return value


def _name(gain: int, rows: int) -> str:
    return f"gain^{gain} rows^{rows}"


def _fraction(value: object) -> Fraction:
    if not isinstance(value, str) or not _FRACTION.fullmatch(value) or set(value.partition("/")[2]) == {"0"}:
        raise ValueError("a sum is not a fraction")
    found = Fraction(value)
    if found.denominator & (found.denominator - 1) or str(found) != value:
        raise ValueError("a sum is not a fraction in lowest terms with a power of two below")
    return found
