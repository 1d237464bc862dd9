"""The aggregates that show whether medians and quantiles hold: counts beyond each bound, which need no sorted column.

A median or quantile lies between two neighbouring values of the sorted column. If both lie between the bounds, it does.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from data_contracts.contract.measures import Measure, Question, breaking
from data_contracts.contract.syntax import INTERPOLATIONS
from data_contracts.contract.translation.questions import EXACT, Arguments, Kind, is_number

# A missing bound: beyond it, differences of integers could overflow in pandas, and those of float64 be infinite.
_FURTHEST = EXACT - 1.0
_MOST = 100
# Relative to a position: several times what two ways of computing it can differ by.
_SLACK = 1e-12


class _Range(NamedTuple):
    """What a quantile must keep to; an operator is `>` or `>=`, `<` or `<=`."""

    quantile: float
    low: float
    high: float
    above: str = ">="
    below: str = "<="


def is_bounded(value: Any) -> bool:
    """Whether these are quantiles and their ranges, as GX accepts them, with bounds that any integer compares with."""
    if not isinstance(value, dict) or value.keys() != {"quantiles", "value_ranges"}:
        return False
    quantiles, ranges = value["quantiles"], value["value_ranges"]
    if type(quantiles) is not list or type(ranges) is not list or not 0 < len(quantiles) == len(ranges) <= _MOST:
        return False
    if not all(type(one) in (int, float) and 0 <= one <= 1 for one in quantiles):
        return False
    if not all(type(one) is list and len(one) == 2 and all(map(_is_bound, one)) for one in ranges):
        return False
    return all(None in one or one[0] <= one[1] for one in ranges)


def _is_bound(value: Any) -> bool:
    return value is None or (is_number(value) and abs(value) < EXACT)


def is_interpolation(value: Any) -> bool:
    """Whether `allow_relative_error` names an interpolation of pandas, or none, which is `nearest`."""
    return value is False or (isinstance(value, str) and value in INTERPOLATIONS)


def median(kwargs: Arguments, kind: Kind) -> Question | None:
    """The median lies between two bounds; None if a bound is too large."""
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if not (_is_bound(low) and _is_bound(high)):
        return None
    above, below = ">" if kwargs.get("strict_min") else ">=", "<" if kwargs.get("strict_max") else "<="
    return _question(kwargs["column"], [_range(0.5, low, high)._replace(above=above, below=below)], exact=True)


def quantiles(kwargs: Arguments, kind: Kind) -> Question:
    """Quantiles lie in their ranges, whichever way values between two neighbours are interpolated."""
    asked = kwargs["quantile_ranges"]
    pairs = zip(asked["quantiles"], asked["value_ranges"], strict=True)
    return _question(kwargs["column"], [_range(quantile, low, high) for quantile, (low, high) in pairs], exact=False)


def _range(quantile: float, low: float | None, high: float | None) -> _Range:
    return _Range(quantile, -_FURTHEST if low is None else float(low), _FURTHEST if high is None else float(high))


def _question(column: str, ranges: list[_Range], *, exact: bool) -> Question:
    measures = [Measure("count({c})", column)]
    for one in ranges:
        for sign, bound in ((one.above, one.low), (one.below, one.high)):
            measures.append(breaking(f"{{c}}::DOUBLE {sign} ?::DOUBLE", column, (bound,)))

    def holds(count: int, *beyond: int) -> bool:
        for one, under, over in zip(ranges, beyond[::2], beyond[1::2], strict=True):
            first, last = neighbours(one.quantile, count, exact=exact)
            if not (count and under <= first and over <= count - 1 - last):
                return False
        return True

    return Question(tuple(measures), holds)


def neighbours(quantile: float, count: int, *, exact: bool) -> tuple[int, int]:
    """Positions, from 0, of the sorted values that a quantile lies between.

    Args:
        exact: its position is computed without rounding, as of a median; else it may be off in the last digits.
    """
    position = quantile * (count - 1)
    slack = 0.0 if exact else _SLACK * (position + 1)
    return max(math.floor(position - slack), 0), min(math.ceil(position + slack), count - 1)
