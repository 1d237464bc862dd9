"""The aggregates that show whether an expectation holds, and Great Expectations' rule on their values.

An aggregate only ever shows that an expectation holds. Where the values come close to a bound, it shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

Kind = Literal["whole", "real", "short", "text", "flag", "time"]
Arguments = dict[str, Any]

EXACT = 2**53  # float64 holds every whole number up to here
_INT64 = 2**63
# Relative to the sum of all absolute values: several times what two ways of adding float64 can differ by.
_BAND = 1e-12
_EPSILON = 2.3e-16
_SQUARED = 1e150  # a sum of squares of smaller values is finite


class Measure(NamedTuple):
    """An aggregate: SQL in which `{c}` stands for the column, which has neither nulls nor NaN but NULL for both.

    Attributes:
        sql: the aggregate; each `?` is one of `values`.
        column: the column's name; None if all rows are meant.
        values: what was written in the suite, bound as parameters.
    """

    sql: str
    column: str | None = None
    values: tuple[Any, ...] = ()

    @property
    def distinct(self) -> bool:
        """Whether it counts distinct values, which takes memory for each."""
        return "DISTINCT" in self.sql


@dataclass(frozen=True)
class Question:
    """What a scan has to measure for one expectation.

    Attributes:
        measures: the aggregates.
        holds: from their values, in order: whether the expectation certainly holds.
    """

    measures: tuple[Measure, ...]
    holds: Callable[..., bool]


ROWS = Measure("count(*)")


def is_number(value: Any) -> bool:
    """A finite number that float64 holds exactly; no boolean."""
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= EXACT


def is_text(value: Any) -> bool:
    """A text that is valid UTF-8."""
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def is_flag(value: Any) -> bool:
    """True or False."""
    return type(value) is bool


def _mostly(kwargs: Arguments) -> Callable[[int, int], bool]:
    """GX's rule for rows: of so many rows, so many broke it."""
    mostly = float(kwargs.get("mostly", 1.0))
    return lambda of, broken: of == 0 or (float(of) - float(broken)) / float(of) >= mostly


def _of_rows(kwargs: Arguments, condition: str, values: tuple[Any, ...]) -> Question:
    column = kwargs["column"]
    # Not `FILTER`: DuckDB's memory and time for it grow with the square of the number of aggregates.
    broken = Measure(f"count(CASE WHEN NOT ({condition}) THEN 1 END)", column, values)
    return Question((Measure("count({c})", column), broken), _mostly(kwargs))


def not_null(kwargs: Arguments, kind: Kind) -> Question:
    """Values are there."""
    enough = _mostly(kwargs)
    present = Measure("count({c})", kwargs["column"])
    return Question((ROWS, present), lambda rows, present: enough(rows, rows - present))


def null(kwargs: Arguments, kind: Kind) -> Question:
    """Values are missing."""
    return Question((ROWS, Measure("count({c})", kwargs["column"])), _mostly(kwargs))


def _bounds(kwargs: Arguments, value: str) -> tuple[str, tuple[float, ...]]:
    """A condition on a value, and its parameters: GX makes every bound a float64."""
    parts = []
    for name, strict, plain in (("min_value", ">", ">="), ("max_value", "<", "<=")):
        if name in kwargs:
            sign = strict if kwargs.get(f"strict_{name[:3]}") else plain
            parts.append((f"{value} {sign} ?::DOUBLE", float(kwargs[name])))
    return " AND ".join(part for part, _ in parts), tuple(bound for _, bound in parts)


def between(kwargs: Arguments, kind: Kind) -> Question:
    """Values lie between two bounds."""
    return _of_rows(kwargs, *_bounds(kwargs, "{c}::DOUBLE"))


def lengths_between(kwargs: Arguments, kind: Kind) -> Question:
    """The code points of a text are between so many and so many."""
    return _of_rows(kwargs, *_bounds(kwargs, "length({c})"))


def lengths_equal(kwargs: Arguments, kind: Kind) -> Question:
    """A text has so many code points."""
    return _of_rows(kwargs, "length({c}) = ?::BIGINT", (kwargs["value"],))


def in_set(kwargs: Arguments, kind: Kind) -> Question | None:
    """Values are in a set; None if the set has other values than the column."""
    contains = _contains(kwargs["value_set"], kind)
    return None if contains is None else _of_rows(kwargs, contains, (tuple(kwargs["value_set"]),))


def not_in_set(kwargs: Arguments, kind: Kind) -> Question | None:
    """Values are not in a set; None if the set has other values than the column."""
    contains = _contains(kwargs["value_set"], kind)
    return None if contains is None else _of_rows(kwargs, f"NOT {contains}", (tuple(kwargs["value_set"]),))


def _contains(values: list[Any], kind: Kind) -> str | None:
    """The condition that a set contains a value; None where pandas may see the set's values in another type."""
    if kind == "whole" and all(type(one) is int and -_INT64 <= one < _INT64 for one in values):
        return "list_contains(?::BIGINT[], {c}::BIGINT)"
    if kind in ("real", "short") and all(map(is_number, values)):
        return "list_contains(?::DOUBLE[], {c}::DOUBLE)"
    if kind == "text" and all(map(is_text, values)):
        return "list_contains(?::VARCHAR[], {c})"
    return "list_contains(?::BOOLEAN[], {c})" if kind == "flag" and all(map(is_flag, values)) else None


def unique(kwargs: Arguments, kind: Kind) -> Question:
    """No value occurs twice; with a duplicate, it shows nothing."""
    column = kwargs["column"]
    distinct = Measure("count(DISTINCT {c})", column)
    return Question((Measure("count({c})", column), distinct), lambda count, distinct: bool(count == distinct))


def _inside(kwargs: Arguments, value: float, band: float = 0.0) -> bool:
    """Whether a value that may be off by `band` certainly keeps the bounds."""
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    strict_low, strict_high = kwargs.get("strict_min", False), kwargs.get("strict_max", False)
    above = low is None or value - band > float(low) or (not band and not strict_low and value == low)
    below = high is None or value + band < float(high) or (not band and not strict_high and value == high)
    return math.isfinite(band) and above and below


def extreme(function: str) -> Callable[[Arguments, Kind], Question]:
    """The question for `min` or `max`."""

    def build(kwargs: Arguments, kind: Kind) -> Question:
        def holds(value: float | None) -> bool:
            return value is not None and (kind == "real" or abs(value) <= EXACT) and _inside(kwargs, float(value))

        return Question((Measure(f"{function}({{c}})", kwargs["column"]),), holds)

    return build


def _sums(kwargs: Arguments, kind: Kind) -> tuple[Measure, ...]:
    """The count, the sum and the sum of the absolute values."""
    total = "sum({c}::HUGEINT)" if kind == "whole" else "kahan_sum({c})"
    return tuple(Measure(sql, kwargs["column"]) for sql in ("count({c})", total, "sum(abs({c}::DOUBLE))"))


def sum_of(kwargs: Arguments, kind: Kind) -> Question:
    """The sum lies between two bounds."""

    def holds(count: int, total: float | None, size: float | None) -> bool:
        if total is None or size is None or not size < _INT64 / 2:  # beyond that, a sum of int64 overflows
            return False
        exact = kind == "whole" and size < EXACT  # a sum of float64 may have come down to EXACT itself
        return _inside(kwargs, float(total), 0.0 if exact or not size else max(_BAND * size, 1e-300))

    return Question(_sums(kwargs, kind), holds)


def mean(kwargs: Arguments, kind: Kind) -> Question:
    """The mean lies between two bounds."""

    def holds(count: int, total: float | None, size: float | None) -> bool:
        if total is None or size is None or not size < _INT64 / 2:
            return False
        return _inside(kwargs, float(total) / count, max(_BAND * size / count, 1e-300) if size else 0.0)

    return Question(_sums(kwargs, kind), holds)


def deviation(kwargs: Arguments, kind: Kind) -> Question:
    """The standard deviation of the sample lies between two bounds."""

    def holds(count: int, deviation: float | None, largest: float | None) -> bool:
        if deviation is None or largest is None or not largest < _SQUARED:
            return False
        return _inside(kwargs, deviation, max(2 * (_BAND + count * _EPSILON) * largest, 1e-150) if largest else 0.0)

    column = kwargs["column"]
    # Larger values would be an error of DuckDB's, which ends the whole scan.
    deviation = f"stddev_samp(CASE WHEN abs({{c}}::DOUBLE) < {_SQUARED} THEN {{c}}::DOUBLE END)"
    sql = ("count({c})", deviation, "max(abs({c}::DOUBLE))")
    return Question(tuple(Measure(one, column) for one in sql), holds)


def distinct_count(kwargs: Arguments, kind: Kind) -> Question:
    """There are so many distinct values."""
    return Question((Measure("count(DISTINCT {c})", kwargs["column"]),), lambda count: _inside(kwargs, count))


def proportion(kwargs: Arguments, kind: Kind) -> Question:
    """The share of distinct values lies between two bounds."""

    def holds(count: int, distinct: int) -> bool:
        return _inside(kwargs, distinct / count if count else 0)

    return Question(unique(kwargs, kind).measures, holds)


def row_count(kwargs: Arguments, schema: pa.Schema) -> Question:
    """There are so many rows."""
    expected = kwargs.get("value")
    return Question((ROWS,), lambda rows: _inside(kwargs, rows) if expected is None else rows == expected)


def column_count(kwargs: Arguments, schema: pa.Schema) -> Question:
    """There are so many columns."""
    expected, count = kwargs.get("value"), len(schema.names)
    return Question((), lambda: _inside(kwargs, count) if expected is None else count == expected)


def columns_listed(kwargs: Arguments, schema: pa.Schema) -> Question:
    """The columns are these, in this order."""
    return Question((), lambda: kwargs.get("column_list") == schema.names)


def columns_in_set(kwargs: Arguments, schema: pa.Schema) -> Question:
    """The columns are these, in any order; or are among the data's."""
    wanted, names = set(kwargs.get("column_set", [])), set(schema.names)
    exact = kwargs.get("exact_match", True)
    return Question((), lambda: wanted == names if exact else bool(wanted) and wanted <= names)


def typed(kwargs: Arguments, schema: pa.Schema) -> Question:
    """A column of int64 or float64 is of this type; of another type, it shows nothing."""
    column = kwargs["column"]
    kind = schema.field(column).type if column in schema.names else None
    return Question((), lambda: (kwargs["type_"], kind) in (("int64", pa.int64()), ("float64", pa.float64())))


def exists(kwargs: Arguments, schema: pa.Schema) -> Question:
    """The data has a column."""
    return Question((), lambda: kwargs["column"] in schema.names)
