"""The aggregates that show whether an expectation holds, and Great Expectations' rule on their values.

An aggregate only ever shows that an expectation holds. Where the values come close to a bound, it shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa

from data_contracts.contract.findings import EXAMPLES
from data_contracts.contract.measures import ROWS, Broken, Measure, Question, breaking

Kind = Literal["whole", "real", "short", "text", "flag", "time"]
Arguments = dict[str, Any]
Bounds = tuple[tuple[str, float], ...]

EXACT = 2**53  # float64 holds every whole number up to here
_INT64 = 2**63
# Relative to the sum of all absolute values: several times what two ways of adding float64 can differ by.
_BAND = 1e-12
_EPSILON = 2.3e-16
_SQUARED = 1e150  # a sum of squares of smaller values is finite


def is_number(value: Any) -> bool:
    """A finite number that float64 holds exactly; no boolean."""
    return type(value) in (int, float) and abs(value) <= EXACT


def is_text(value: Any) -> bool:
    """A text that is valid UTF-8."""
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def is_flag(value: Any) -> bool:
    """True or False."""
    return type(value) is bool


def mostly_of(kwargs: Arguments) -> Callable[[int, int], bool]:
    """GX's rule for rows: of so many rows, so many broke it."""
    mostly = float(kwargs.get("mostly", 1.0))
    return lambda of, broken: of == 0 or (float(of) - float(broken)) / float(of) >= mostly


def of_rows(kwargs: Arguments, condition: str, values: tuple[Any, ...], bounds: Bounds = ()) -> Question:
    """The question whether the values that are there meet a condition on `{c}`, in enough rows.

    Args:
        bounds: what the condition comes to, if it is about the value's size.
    """
    column = kwargs["column"]
    broken = breaking(condition, column, values, bounds)
    examples = _first(column, f"NOT ({condition})", values)
    measures = (Measure("count({c})", column), broken)
    return Question(measures, mostly_of(kwargs), Broken(lambda of, broken: (of, broken), (examples,)))


def _first(column: str, condition: str, values: tuple[Any, ...] = ()) -> Measure:
    """The first rows that meet a condition: their numbers, and those of their values that are there."""
    of = f"CASE WHEN {condition} THEN {{n}} END"
    # Not one list of pairs: DuckDB would sort by bytes of its own, in which -0.0 is 0.0.
    pair = f"{{{{'n': min({of}, {EXAMPLES}), 'c': arg_min({{c}}, {of}, {EXAMPLES})}}}}"
    return Measure(pair, column, (*values, *values))


def not_null(kwargs: Arguments, kind: Kind) -> Question:
    """Values are there."""
    enough = mostly_of(kwargs)
    present = Measure("count({c})", kwargs["column"])
    broken = Broken(lambda rows, present: (rows, rows - present), (_first(kwargs["column"], "{c} IS NULL"),))
    return Question((ROWS, present), lambda rows, present: enough(rows, rows - present), broken)


def null(kwargs: Arguments, kind: Kind) -> Question:
    """Values are missing."""
    measures = (ROWS, Measure("count({c})", kwargs["column"]))
    if kind == "time":  # a scan only sees whether there is one
        return Question(measures, mostly_of(kwargs))
    broken = Broken(lambda rows, present: (rows, present), (_first(kwargs["column"], "{c} IS NOT NULL"),))
    return Question(measures, mostly_of(kwargs), broken)


def _bounds(kwargs: Arguments) -> Bounds:
    """Operators and bounds: GX makes every bound a float64."""
    parts = []
    for name, strict, plain in (("min_value", ">", ">="), ("max_value", "<", "<=")):
        if name in kwargs:
            parts.append((strict if kwargs.get(f"strict_{name[:3]}") else plain, float(kwargs[name])))
    return tuple(parts)


def _within(bounds: Bounds, value: str) -> tuple[str, tuple[float, ...]]:
    """The condition that a value keeps these bounds, and its parameters."""
    return " AND ".join(f"{value} {sign} ?::DOUBLE" for sign, _ in bounds), tuple(bound for _, bound in bounds)


def between(kwargs: Arguments, kind: Kind) -> Question:
    """Values lie between two bounds."""
    bounds = _bounds(kwargs)
    return of_rows(kwargs, *_within(bounds, "{c}::DOUBLE"), bounds)


def lengths_between(kwargs: Arguments, kind: Kind) -> Question:
    """The code points of a text are between so many and so many."""
    return of_rows(kwargs, *_within(_bounds(kwargs), "length({c})"))


def lengths_equal(kwargs: Arguments, kind: Kind) -> Question:
    """A text has so many code points."""
    return of_rows(kwargs, "length({c}) = ?::BIGINT", (kwargs["value"],))


def in_set(kwargs: Arguments, kind: Kind) -> Question | None:
    """Values are in a set; None if the set has other values than the column."""
    inside = contains(kwargs["value_set"], kind)
    return None if inside is None else of_rows(kwargs, inside, (tuple(kwargs["value_set"]),))


def not_in_set(kwargs: Arguments, kind: Kind) -> Question | None:
    """Values are not in a set; None if the set has other values than the column."""
    inside = contains(kwargs["value_set"], kind)
    return None if inside is None else of_rows(kwargs, f"NOT {inside}", (tuple(kwargs["value_set"]),))


def contains(values: list[Any], kind: Kind) -> str | None:
    """The condition that a set contains a value; None where pandas may see the set's values in another type."""
    if kind == "whole" and all(type(one) is int and -_INT64 <= one < _INT64 for one in values):
        return "list_contains(?::BIGINT[], {c}::BIGINT)"
    if kind in ("real", "short") and all(map(is_number, values)):
        return "list_contains(?::DOUBLE[], {c}::DOUBLE)"
    if kind == "text" and all(map(is_text, values)):
        return "list_contains(?::VARCHAR[], {c})"
    return "list_contains(?::BOOLEAN[], {c})" if kind == "flag" and all(map(is_flag, values)) else None


def unique(kwargs: Arguments, kind: Kind) -> Question:
    """Enough values occur once."""
    column = kwargs["column"]
    measures = (Measure("count({c})", column), Measure("count(DISTINCT {c})", column))
    # Every copy of a value that occurs twice.
    copies = "(SELECT {c}, {n}, count(*) OVER (PARTITION BY {c}) AS k FROM {rows} WHERE {c} IS NOT NULL) WHERE k > 1"
    examples = (Measure("count(*)", column, (), copies), _first(column, "true")._replace(rows=copies))
    broken = Broken(None, examples, mostly_of(kwargs))
    return Question(measures, lambda count, distinct: bool(count == distinct), broken)


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

        def observed(low: float | None, high: float | None, rows: int, count: int) -> float | None:
            value = low if function == "min" else high
            # Of two zeros, either may be the least.
            if low is None or high is None or not value or (kind == "whole" and max(-low, high) > EXACT):
                return None
            return float(value) if kind == "real" or count < rows else value  # as pandas has integers beside nulls

        column = kwargs["column"]
        ends = (Measure("min({c})", column), Measure("max({c})", column))
        measures = (*ends, ROWS, Measure("count({c})", column))
        at = 0 if function == "min" else 1
        return Question(measures, lambda *values: holds(values[at]), None, observed)

    return build


def _sums(kwargs: Arguments, kind: Kind) -> tuple[Measure, ...]:
    """The count, the sum, the sum of the absolute values, and the number of rows."""
    total = "sum({c}::HUGEINT)" if kind == "whole" else "kahan_sum({c})"
    return (*(Measure(sql, kwargs["column"]) for sql in ("count({c})", total, "sum(abs({c}::DOUBLE))")), ROWS)


def _is_exact(kind: Kind, total: float | None, size: float | None) -> bool:
    """Whether every way of adding up gives this sum. A sum of float64 may have come down to EXACT itself."""
    return kind == "whole" and total is not None and size is not None and size < EXACT


def sum_of(kwargs: Arguments, kind: Kind) -> Question:
    """The sum lies between two bounds."""

    def holds(count: int, total: float | None, size: float | None, rows: int) -> bool:
        if total is None or size is None or not size < _INT64 / 2:  # beyond that, a sum of int64 overflows
            return False
        exact = _is_exact(kind, total, size)
        return _inside(kwargs, float(total), 0.0 if exact or not size else max(_BAND * size, 1e-300))

    def observed(count: int, total: Any, size: float | None, rows: int) -> float | None:
        if not _is_exact(kind, total, size):
            return None
        return float(total) if count < rows else int(total)  # as pandas has integers beside nulls

    return Question(_sums(kwargs, kind), holds, None, observed)


def mean(kwargs: Arguments, kind: Kind) -> Question:
    """The mean lies between two bounds."""

    def holds(count: int, total: float | None, size: float | None, rows: int) -> bool:
        if total is None or size is None or not size < _INT64 / 2:
            return False
        exact = _is_exact(kind, total, size) or not size
        return _inside(kwargs, float(total) / count, 0.0 if exact else max(_BAND * size / count, 1e-300))

    def observed(count: int, total: Any, size: float | None, rows: int) -> float | None:
        return float(total) / count if _is_exact(kind, total, size) else None

    return Question(_sums(kwargs, kind), holds, None, observed)


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
    measures = (Measure("count(DISTINCT {c})", kwargs["column"]),)
    return Question(measures, lambda count: _inside(kwargs, count), None, lambda count: count)


def proportion(kwargs: Arguments, kind: Kind) -> Question:
    """The share of distinct values lies between two bounds."""

    def observed(count: int, distinct: int) -> float:
        return distinct / count if count else 0

    measures = unique(kwargs, kind).measures
    return Question(measures, lambda *values: _inside(kwargs, observed(*values)), None, observed)


def row_count(kwargs: Arguments, schema: pa.Schema) -> Question:
    """There are so many rows."""
    expected = kwargs.get("value")

    def holds(rows: int) -> bool:
        return _inside(kwargs, rows) if expected is None else rows == expected

    return Question((ROWS,), holds, None, lambda rows: rows)


def column_count(kwargs: Arguments, schema: pa.Schema) -> Question:
    """There are so many columns."""
    expected, count = kwargs.get("value"), len(schema.names)
    holds = _inside(kwargs, count) if expected is None else count == expected
    return Question((), lambda: holds, None, lambda: count)


def columns_listed(kwargs: Arguments, schema: pa.Schema) -> Question:
    """The columns are these, in this order."""
    return Question((), lambda: kwargs.get("column_list") == schema.names, None, lambda: list(schema.names))


def columns_in_set(kwargs: Arguments, schema: pa.Schema) -> Question:
    """The columns are these, in any order; or are among the data's."""
    wanted, names = set(kwargs.get("column_set", [])), set(schema.names)
    exact = kwargs.get("exact_match", True)
    holds = wanted == names if exact else bool(wanted) and wanted <= names
    return Question((), lambda: holds, None, lambda: sorted(schema.names))


def typed(kwargs: Arguments, schema: pa.Schema) -> Question:
    """A column of int64 or float64 is of this type; of another type, it shows nothing."""
    column = kwargs["column"]
    kind = schema.field(column).type if schema.get_field_index(column) >= 0 else None
    named = kwargs["type_list"] if "type_list" in kwargs else [kwargs["type_"]]
    holds = any((name, kind) in (("int64", pa.int64()), ("float64", pa.float64())) for name in named)
    return Question((), lambda: holds)


def exists(kwargs: Arguments, schema: pa.Schema) -> Question:
    """The data has a column."""
    return Question((), lambda: schema.get_field_index(kwargs["column"]) >= 0)
