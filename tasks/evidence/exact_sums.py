"""Sums over rows' gains that add up exactly, in any order and over any number of nights.

A sum of floating-point numbers depends on their order, so what a night adds would depend on the nights before it. Every
double is an integer times a power of two, so sums are kept as fractions: adding is exact, and two tallies of the same
rows are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# Scores are not larger, and smaller differences are none, so that quotients, squares and their sums are doubles.
LARGEST, SMALLEST = 1e60, 1e-60
MOST_ROWS = 10**15
# The values that are added at once; more would not fit the integers in `exact_sum`.
_PIECE = 2**24
_FRACTION = re.compile(r"-?[0-9]{1,600}(/[1-9][0-9]{0,600})?", re.ASCII)
_COUNTS = ("units", "rows", "most_rows")
_SUMS = ("gains", "squares", "products", "squared_rows")
_EXTREMES = ("lowest", "highest")


@dataclass(frozen=True)
class Sums:
    """Sums over units of rows, of which each may be one row.

    Attributes:
        units, rows, most_rows: how many there are; the rows of the largest unit.
        gains, squares: of the units' gains, and of their squares.
        products, squared_rows: of each unit's gain times its rows, and of its squared number of rows.
        lowest, highest: of both models' scores of a unit; 0 without units.
    """

    units: int = 0
    rows: int = 0
    most_rows: int = 0
    gains: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)
    products: Fraction = Fraction(0)
    squared_rows: Fraction = Fraction(0)
    lowest: float = 0.0
    highest: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        if not (self.units and other.units):
            return self if self.units else other
        return Sums(
            self.units + other.units,
            self.rows + other.rows,
            max(self.most_rows, other.most_rows),
            self.gains + other.gains,
            self.squares + other.squares,
            self.products + other.products,
            self.squared_rows + other.squared_rows,
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
        )

    @classmethod
    def of(cls, champion: Values, challenger: Values, sizes: Values, sign: int = 1) -> Sums:
        """The sums over units.

        Args:
            champion, challenger: (units,) the scores, added up over each unit's rows.
            sizes: (units,) number of rows.
            sign: -1 if a smaller score is better.
        """
        if not len(sizes):
            return cls()
        gains = sign * (challenger - champion)
        gains = np.where(np.abs(gains) < SMALLEST, 0.0, gains)
        return cls(
            len(gains),
            int(exact_sum(sizes)),
            int(sizes.max()),
            exact_sum(gains),
            exact_sum(gains**2),
            exact_sum(gains * sizes),
            exact_sum(sizes**2),
            float(min(champion.min(), challenger.min())) + 0.0,  # -0.0 is 0.0
            float(max(champion.max(), challenger.max())) + 0.0,
        )

    @classmethod
    def of_counts(cls, won: int, lost: int, tied: int) -> Sums:
        """The sums over rows of which each gained 1, -1 or 0."""
        rows, gains = won + lost + tied, Fraction(won - lost)
        return cls(rows, rows, 1, gains, Fraction(won + lost), gains, Fraction(rows), 0.0, 1.0) if rows else cls()

    def beyond(self, bound: float, sign: int = 1) -> tuple[float, float] | None:
        """The sums of (a unit's gain - `bound` times its rows), and of its squares; None if their size is not known.

        They are divided by the largest loss that is expected with what was seen of the scores, so none is below -1.

        Args:
            sign: -1 for the same with the models exchanged.
        """
        exact = Fraction(bound)
        more = max(sign * exact * self.most_rows, Fraction(0))
        reach = Fraction(self.highest) - Fraction(self.lowest) + more
        if reach < SMALLEST:
            return None
        total = sign * (self.gains - exact * self.rows) / reach
        squares = (self.squares - 2 * exact * self.products + exact**2 * self.squared_rows) / reach**2
        return float(total), max(float(squares), 0.0)

    def to_json(self) -> dict[str, Any]:
        """JSON that `from_json` reads; fractions are text, which no reader rounds."""
        fields = {name: getattr(self, name) for name in _COUNTS + _EXTREMES}
        return fields | {name: str(getattr(self, name)) for name in _SUMS}

    @classmethod
    def from_json(cls, value: object) -> Sums:
        """The sums that `to_json` wrote.

        Raises:
            ValueError: no rows have such sums; the message says why.
        """
        if not isinstance(value, Mapping) or set(value) != {*_COUNTS, *_SUMS, *_EXTREMES}:
            raise ValueError("a sum is missing or unknown")
        units, rows, most_rows = (counted(value[name], name) for name in _COUNTS)
        gains, squares, products, squared_rows = (_fraction(value[name], name) for name in _SUMS)
        lowest, highest = (_score(value[name], name) for name in _EXTREMES)
        found = cls(units, rows, most_rows, gains, squares, products, squared_rows, lowest, highest)
        if not found._can_be():
            raise ValueError("no rows have such sums")
        return found

    def _can_be(self) -> bool:
        """Whether some units can have these sums, but for the rounding of squares and products."""
        if not self.units:
            return self == Sums()
        more, units, most = 1 + Fraction(1, 10**9), self.units, self.most_rows
        reach = Fraction(self.highest) - Fraction(self.lowest)
        return (
            most >= 1
            and units + most - 1 <= self.rows <= min(units * most, MOST_ROWS)
            and self.rows**2 <= units * self.squared_rows * more
            and self.squared_rows <= self.rows * most * more
            and reach >= 0
            and self.gains**2 <= units * self.squares * more
            and self.squares <= units * (reach * more) ** 2
            and self.products**2 <= self.squares * self.squared_rows * more**2
        )


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


def counted(value: object, name: str) -> int:
    """A count that was read from JSON; ValueError if it is not a whole number from 0 to 10**15."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_ROWS:
        raise ValueError(f"{name} is not a whole number from 0 to 10**15")
    return value


def _score(value: object, name: str) -> float:
    # A unit's score is a sum over its rows.
    if isinstance(value, bool) or not isinstance(value, float | int) or not abs(value) <= LARGEST:
        raise ValueError(f"{name} is not a number that a score can be")
    return float(value)


def _fraction(value: object, name: str) -> Fraction:
    if not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError(f"{name} is not a fraction")
    found = Fraction(value)
    if found.denominator & (found.denominator - 1) or str(found) != value:
        raise ValueError(f"{name} is not a fraction in lowest terms with a power of two below")
    return found
