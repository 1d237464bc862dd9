"""The questions of a scan: the aggregates that show whether an expectation holds, and the rule on their values.

Nothing here reads a row. An aggregate only ever shows that an expectation holds; where its value comes close to a
bound, it shows nothing. About the different values of a column it shows only that: what was observed otherwise may be
any number of values. A median or quantile lies between two neighbouring values of the sorted column; counts beyond each
bound, which need no sorted column, show whether both lie between the bounds.

Some expectations compare columns of a row with each other, or rows by several columns. `ignore_row_if` leaves rows out
as Great Expectations does: a row that is left out is neither counted nor broken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from data_contracts.contract.findings import EXAMPLES
from data_contracts.contract.suites import INTERPOLATIONS

ALL = "{rows}"
DISTINCT = "count(DISTINCT {c})"
_BREAKING = ("count(CASE WHEN NOT (", ") THEN 1 END)")
EXACT = 2**53  # float64 holds every whole number up to here
_INT64 = 2**63
# Relative to the sum of all absolute values: several times what two ways of adding float64 can differ by.
_BAND = 1e-12
_EPSILON = 2.3e-16
_SQUARED = 1e150  # a sum of squares of smaller values is finite
# A missing bound: beyond it, differences of integers could overflow in pandas, and those of float64 be infinite.
_FURTHEST = EXACT - 1.0
_MOST_QUANTILES = 100
# Relative to a position: several times what two ways of computing it can differ by.
_SLACK = 1e-12
# What takes the place of a missing value in the examples, where it is marked.
_FILLER: dict[Kind, str] = {"whole": "0", "real": "0.0", "short": "0.0", "text": "''", "flag": "false"}
_PAIR = {"both_values_are_missing": " AND ", "either_value_is_missing": " OR ", "neither": ""}
_MANY = {"all_values_are_missing": " AND ", "any_value_is_missing": " OR ", "never": ""}
IGNORED = {*_PAIR, *_MANY}


class Where(NamedTuple):
    """The rows that meet a condition.

    Attributes:
        sql: the condition, in which `{w0}`, `{w1}`, … stand for the columns; each `?` is one of `values`.
    """

    sql: str
    columns: tuple[str, ...]
    values: tuple[Any, ...]


class Measure(NamedTuple):
    """An aggregate: SQL in which `{c}` stands for the column, which has neither nulls nor NaN but NULL for both, and
    `{n}` for the row's number.

    Attributes:
        sql: the aggregate; each `?` is one of `values`.
        column: the column's name; None if all rows are meant.
        values: what was written in the suite, bound as parameters.
        rows: the rows that it is over, where `{rows}`, the default, stands for all of them.
        more: further columns, for which `{c1}`, `{c2}`, … stand.
        where: the rows that `{rows}` stands for, if not all.
        bounds: of a count of values that break these, each an operator and a bound as float64; it is 0 if the least and
            the greatest value keep them.
    """

    sql: str
    column: str | None = None
    values: tuple[Any, ...] = ()
    rows: str = ALL
    more: tuple[str, ...] = ()
    where: Where | None = None
    bounds: tuple[tuple[str, float], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that it reads."""
        of_rows = () if self.where is None else self.where.columns
        return (*(() if self.column is None else (self.column,)), *self.more, *of_rows)

    @property
    def condition(self) -> str | None:
        """Of a count of rows that break a condition, the condition."""
        if self.sql.startswith(_BREAKING[0]) and self.sql.endswith(_BREAKING[1]):
            return self.sql.removeprefix(_BREAKING[0]).removesuffix(_BREAKING[1])
        return None

    @property
    def distinct(self) -> bool:
        """Whether it counts distinct values, which takes memory for each."""
        return "DISTINCT" in self.sql

    @property
    def apart(self) -> bool:
        """Whether a query of its own is better for it."""
        return self.distinct or self.rows != ALL


def breaking(
    condition: str, column: str, values: tuple[Any, ...] = (), bounds: tuple[tuple[str, float], ...] = ()
) -> Measure:
    """The number of values that are there and break a condition on `{c}`."""
    # Not `FILTER`: DuckDB's memory and time for it grow with the square of the number of aggregates.
    return Measure(condition.join(_BREAKING), column, values, bounds=bounds)


MeasuredValues = dict[Measure, Any]


class Broken(NamedTuple):
    """What tells of the rows that broke an expectation.

    Attributes:
        counts: from the values of the question's measures: the rows it was checked on, and those of them that broke it;
            None for values that show nothing. None if the first measure of `examples` counts the latter, and the
            question's first the former.
        examples: further measures; the last has the first rows, as `{"n": numbers, "c": values}`, or None for
            values that are all missing; or, of several columns, as `{"n": numbers, "v0": values, "m0": whether they
            are missing, "v1": …}`.
        enough: from the rows and those that broke it: whether it holds all the same.
    """

    counts: Callable[..., tuple[int, int] | None] | None
    examples: tuple[Measure, ...]
    enough: Callable[[int, int], bool] | None = None


@dataclass(frozen=True)
class ScanQuestion:
    """The aggregates that a scan measures for one expectation.

    Attributes:
        measures: the aggregates.
        holds: from their values, in order: whether the expectation certainly holds.
        broken: for an expectation about rows: if it does not hold, then these certainly broke it.
        observed: from the values: what was observed, if the expectation certainly does not hold; else None.
    """

    measures: tuple[Measure, ...]
    holds: Callable[..., bool]
    broken: Broken | None = None
    observed: Callable[..., Any] | None = None

    def among(self, where: Where) -> ScanQuestion:
        """The question about the rows that meet a condition."""
        measures = tuple(one._replace(where=where) for one in self.measures)
        if self.broken is None:
            return replace(self, measures=measures)
        examples = tuple(one._replace(where=where) for one in self.broken.examples)
        return replace(self, measures=measures, broken=self.broken._replace(examples=examples))


ROWS = Measure("count(*)")


Kind = Literal["whole", "real", "short", "text", "flag", "time"]
Arguments = Mapping[str, Any]
Bounds = tuple[tuple[str, float], ...]


def is_number(value: Any) -> bool:
    """A finite number that float64 holds exactly; no boolean."""
    return type(value) in (int, float) and abs(value) <= EXACT


def is_text_value(value: Any) -> bool:
    """A text that is valid UTF-8."""
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def is_flag(value: Any) -> bool:
    """True or False."""
    return type(value) is bool


def mostly_of(kwargs: Arguments) -> Callable[[int, int], bool]:
    """GX's rule for rows: of so many rows, so many broke it."""
    mostly = float(kwargs.get("mostly", 1.0))
    return lambda of, broken: of == 0 or (float(of) - float(broken)) / float(of) >= mostly


def of_rows(kwargs: Arguments, condition: str, values: tuple[Any, ...], bounds: Bounds = ()) -> ScanQuestion:
    """The question whether the values that are there meet a condition on `{c}`, in enough rows.

    Args:
        bounds: what the condition comes to, if it is about the value's size.
    """
    column = kwargs["column"]
    broken = breaking(condition, column, values, bounds)
    examples = _first_values(column, f"NOT ({condition})", values)
    measures = (Measure("count({c})", column), broken)
    return ScanQuestion(measures, mostly_of(kwargs), Broken(lambda of, broken: (of, broken), (examples,)))


def _first_values(column: str, condition: str, values: tuple[Any, ...] = ()) -> Measure:
    """The first rows that meet a condition: their numbers, and those of their values that are there."""
    of = f"CASE WHEN {condition} THEN {{n}} END"
    # Not one list of pairs: DuckDB would sort by bytes of its own, in which -0.0 is 0.0.
    pair = f"{{{{'n': min({of}, {EXAMPLES}), 'c': arg_min({{c}}, {of}, {EXAMPLES})}}}}"
    return Measure(pair, column, (*values, *values))


def not_null(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """Values are there."""
    enough = mostly_of(kwargs)
    present = Measure("count({c})", kwargs["column"])
    broken = Broken(lambda rows, present: (rows, rows - present), (_first_values(kwargs["column"], "{c} IS NULL"),))
    return ScanQuestion((ROWS, present), lambda rows, present: enough(rows, rows - present), broken)


def null(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """Values are missing."""
    measures = (ROWS, Measure("count({c})", kwargs["column"]))
    if kind == "time":  # a scan only sees whether there is one
        return ScanQuestion(measures, mostly_of(kwargs))
    broken = Broken(lambda rows, present: (rows, present), (_first_values(kwargs["column"], "{c} IS NOT NULL"),))
    return ScanQuestion(measures, mostly_of(kwargs), broken)


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


def between(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """Values lie between two bounds."""
    bounds = _bounds(kwargs)
    return of_rows(kwargs, *_within(bounds, "{c}::DOUBLE"), bounds)


def lengths_between(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """The code points of a text are between so many and so many."""
    return of_rows(kwargs, *_within(_bounds(kwargs), "length({c})"))


def lengths_equal(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """A text has so many code points."""
    return of_rows(kwargs, "length({c}) = ?::BIGINT", (kwargs["value"],))


def in_set(kwargs: Arguments, kind: Kind) -> ScanQuestion | None:
    """Values are in a set; None if the set has other values than the column."""
    inside = contains(kwargs["value_set"], kind)
    return None if inside is None else of_rows(kwargs, inside, (tuple(kwargs["value_set"]),))


def not_in_set(kwargs: Arguments, kind: Kind) -> ScanQuestion | None:
    """Values are not in a set; None if the set has other values than the column."""
    inside = contains(kwargs["value_set"], kind)
    return None if inside is None else of_rows(kwargs, f"NOT {inside}", (tuple(kwargs["value_set"]),))


def contains(values: list[Any], kind: Kind) -> str | None:
    """The condition that a set contains a value; None where pandas may see the set's values in another type."""
    if kind == "whole" and all(type(one) is int and -_INT64 <= one < _INT64 for one in values):
        return "list_contains(?::BIGINT[], {c}::BIGINT)"
    if kind in ("real", "short") and all(map(is_number, values)):
        return "list_contains(?::DOUBLE[], {c}::DOUBLE)"
    if kind == "text" and all(map(is_text_value, values)):
        return "list_contains(?::VARCHAR[], {c})"
    return "list_contains(?::BOOLEAN[], {c})" if kind == "flag" and all(map(is_flag, values)) else None


def unique(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """Enough values occur once."""
    column = kwargs["column"]
    measures = (Measure("count({c})", column), Measure(DISTINCT, column))
    # Every copy of a value that occurs twice.
    copies = "(SELECT {c}, {n}, count(*) OVER (PARTITION BY {c}) AS k FROM {rows} WHERE {c} IS NOT NULL) WHERE k > 1"
    examples = (Measure("count(*)", column, (), copies), _first_values(column, "true")._replace(rows=copies))
    broken = Broken(None, examples, mostly_of(kwargs))
    return ScanQuestion(measures, lambda count, distinct: bool(count == distinct), broken)


def _inside(kwargs: Arguments, value: float, band: float = 0.0) -> bool:
    """Whether a value that may be off by `band` certainly keeps the bounds."""
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    strict_low, strict_high = kwargs.get("strict_min", False), kwargs.get("strict_max", False)
    above = low is None or value - band > float(low) or (not band and not strict_low and value == low)
    below = high is None or value + band < float(high) or (not band and not strict_high and value == high)
    return math.isfinite(band) and above and below


def extreme(function: str) -> Callable[[Arguments, Kind], ScanQuestion]:
    """The question for `min` or `max`."""

    def build(kwargs: Arguments, kind: Kind) -> ScanQuestion:
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
        return ScanQuestion(measures, lambda *values: holds(values[at]), None, observed)

    return build


def _is_exact(kind: Kind, total: float | None, size: float | None) -> bool:
    """Whether every way of adding up gives this sum. A sum of float64 may have come down to EXACT itself."""
    return kind == "whole" and total is not None and size is not None and size < EXACT


def added_up(*, per_value: bool) -> Callable[[Arguments, Kind], ScanQuestion]:
    """The question whether the sum of the values, or their mean, lies between two bounds."""

    def build(kwargs: Arguments, kind: Kind) -> ScanQuestion:
        def holds(count: int, total: float | None, size: float | None, rows: int) -> bool:
            if total is None or size is None or not size < _INT64 / 2:  # beyond that, a sum of int64 overflows
                return False
            values = count if per_value else 1
            exact = _is_exact(kind, total, size) or not size
            return _inside(kwargs, float(total) / values, 0.0 if exact else max(_BAND * size / values, 1e-300))

        def observed(count: int, total: Any, size: float | None, rows: int) -> float | None:
            if not _is_exact(kind, total, size):
                return None
            if per_value:
                return float(total) / count
            return float(total) if count < rows else int(total)  # as pandas has integers beside nulls

        # The count, the sum, the sum of the absolute values, and the number of rows.
        total = "sum({c}::HUGEINT)" if kind == "whole" else "kahan_sum({c})"
        sums = (Measure(sql, kwargs["column"]) for sql in ("count({c})", total, "sum(abs({c}::DOUBLE))"))
        return ScanQuestion((*sums, ROWS), holds, None, observed)

    return build


def deviation(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """The standard deviation of the sample lies between two bounds."""

    def holds(count: int, deviation: float | None, largest: float | None) -> bool:
        if deviation is None or largest is None or not largest < _SQUARED:
            return False
        return _inside(kwargs, deviation, max(2 * (_BAND + count * _EPSILON) * largest, 1e-150) if largest else 0.0)

    column = kwargs["column"]
    # Larger values would be an error of DuckDB's, which ends the whole scan.
    deviation = f"stddev_samp(CASE WHEN abs({{c}}::DOUBLE) < {_SQUARED} THEN {{c}}::DOUBLE END)"
    sql = ("count({c})", deviation, "max(abs({c}::DOUBLE))")
    return ScanQuestion(tuple(Measure(one, column) for one in sql), holds)


def distinct_count(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """There are so many distinct values."""
    measures = (Measure(DISTINCT, kwargs["column"]),)
    return ScanQuestion(measures, lambda count: _inside(kwargs, count), None, lambda count: count)


def proportion(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """The share of distinct values lies between two bounds."""

    def observed(count: int, distinct: int) -> float:
        return distinct / count if count else 0

    measures = unique(kwargs, kind).measures
    return ScanQuestion(measures, lambda *values: _inside(kwargs, observed(*values)), None, observed)


def row_count(kwargs: Arguments, schema: pa.Schema) -> ScanQuestion:
    """There are so many rows."""
    expected = kwargs.get("value")

    def holds(rows: int) -> bool:
        return _inside(kwargs, rows) if expected is None else rows == expected

    return ScanQuestion((ROWS,), holds, None, lambda rows: rows)


def column_count(kwargs: Arguments, schema: pa.Schema) -> ScanQuestion:
    """There are so many columns."""
    expected, count = kwargs.get("value"), len(schema.names)
    holds = _inside(kwargs, count) if expected is None else count == expected
    return ScanQuestion((), lambda: holds, None, lambda: count)


def columns_listed(kwargs: Arguments, schema: pa.Schema) -> ScanQuestion:
    """The columns are these, in this order."""
    return ScanQuestion((), lambda: kwargs.get("column_list") == schema.names, None, lambda: list(schema.names))


def columns_in_set(kwargs: Arguments, schema: pa.Schema) -> ScanQuestion:
    """The columns are these, in any order; or are among the data's."""
    wanted, names = set(kwargs.get("column_set", [])), set(schema.names)
    exact = kwargs.get("exact_match", True)
    holds = wanted == names if exact else bool(wanted) and wanted <= names
    return ScanQuestion((), lambda: holds, None, lambda: sorted(schema.names))


def typed(kwargs: Arguments, schema: pa.Schema) -> ScanQuestion:
    """A column of int64 or float64 is of this type; of another type, it shows nothing."""
    column = kwargs["column"]
    kind = schema.field(column).type if schema.get_field_index(column) >= 0 else None
    named = kwargs["type_list"] if "type_list" in kwargs else [kwargs["type_"]]
    holds = any((name, kind) in (("int64", pa.int64()), ("float64", pa.float64())) for name in named)
    return ScanQuestion((), lambda: holds)


def exists(kwargs: Arguments, schema: pa.Schema) -> ScanQuestion:
    """The data has a column."""
    return ScanQuestion((), lambda: schema.get_field_index(kwargs["column"]) >= 0)


def distinct_values(*, only: bool, every: bool) -> Callable[[Arguments, Kind], ScanQuestion | None]:
    """The question about a column's different values.

    Args:
        only: they are all in the set.
        every: each value of the set is among them.
    """

    def build(kwargs: Arguments, kind: Kind) -> ScanQuestion | None:
        listed, column = kwargs["value_set"], kwargs["column"]
        inside = contains(listed, kind)
        if inside is None:
            return None
        bound: tuple[Any, ...] = (tuple(listed),)
        others = Measure(f"count(CASE WHEN NOT {inside} THEN 1 END)", column, bound)
        found = Measure(f"count(DISTINCT CASE WHEN {inside} THEN {{c}} END)", column, bound)
        wanted = len(set(listed))

        def holds(*values: int) -> bool:
            return (not only or values[0] == 0) and (not every or values[-1] == wanted)

        return ScanQuestion((*((others,) if only else ()), *((found,) if every else ())), holds)

    return build


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
    if (
        type(quantiles) is not list
        or type(ranges) is not list
        or not 0 < len(quantiles) == len(ranges) <= _MOST_QUANTILES
    ):
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


def median(kwargs: Arguments, kind: Kind) -> ScanQuestion | None:
    """The median lies between two bounds; None if a bound is too large."""
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if not (_is_bound(low) and _is_bound(high)):
        return None
    above, below = ">" if kwargs.get("strict_min") else ">=", "<" if kwargs.get("strict_max") else "<="
    return _question(kwargs["column"], [_range(0.5, low, high)._replace(above=above, below=below)], exact=True)


def quantiles(kwargs: Arguments, kind: Kind) -> ScanQuestion:
    """Quantiles lie in their ranges, whichever way values between two neighbours are interpolated."""
    asked = kwargs["quantile_ranges"]
    pairs = zip(asked["quantiles"], asked["value_ranges"], strict=True)
    return _question(kwargs["column"], [_range(quantile, low, high) for quantile, (low, high) in pairs], exact=False)


def _range(quantile: float, low: float | None, high: float | None) -> _Range:
    return _Range(quantile, -_FURTHEST if low is None else float(low), _FURTHEST if high is None else float(high))


def _question(column: str, ranges: list[_Range], *, exact: bool) -> ScanQuestion:
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

    return ScanQuestion(tuple(measures), holds)


def neighbours(quantile: float, count: int, *, exact: bool) -> tuple[int, int]:
    """Positions, from 0, of the sorted values that a quantile lies between.

    Args:
        exact: its position is computed without rounding, as of a median; else it may be off in the last digits.
    """
    position = quantile * (count - 1)
    slack = 0.0 if exact else _SLACK * (position + 1)
    return max(math.floor(position - slack), 0), min(math.ceil(position + slack), count - 1)


def pair(operator: str) -> Callable[[Arguments, Sequence[str], Sequence[Kind]], ScanQuestion | None]:
    """The question whether two columns of one kind compare so in each row, with `operator` = or >."""

    def build(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> ScanQuestion | None:
        if set(kinds) not in ([{"whole"}, {"real"}, {"text"}] if operator == "=" else [{"whole"}, {"real"}]):
            return None
        sign = ">=" if operator == ">" and kwargs.get("or_equal") else operator
        return _in_each_row(kwargs, names, kinds, f"{{c}} {sign} {{c1}}", _kept(kwargs, _PAIR, names))

    return build


def different(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> ScanQuestion | None:
    """All values in a row are different; missing ones are equal to each other."""
    if set(kinds) not in ({"whole"}, {"real"}, {"text"}):
        return None
    words = _words(names)
    pairs = [(one, other) for at, one in enumerate(words) for other in words[at + 1 :]]
    condition = " AND ".join(f"{one} IS DISTINCT FROM {other}" for one, other in pairs)
    return _in_each_row(kwargs, names, kinds, condition, _kept(kwargs, _MANY, names))


def sum_equal(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> ScanQuestion | None:
    """The sum of a row's whole numbers is so much; of two float64, which add up to the same in any order."""
    if set(kinds) != {"whole"} and list(kinds) != ["real", "real"]:
        return None
    total = " + ".join(f"{word}::{'HUGEINT' if kinds[0] == 'whole' else 'DOUBLE'}" for word in _words(names))
    condition = f"({total})::DOUBLE = {float(kwargs['sum_total'])!r}::DOUBLE"
    return _in_each_row(kwargs, names, kinds, condition, _kept(kwargs, _MANY, names))


def compound(kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind]) -> ScanQuestion:
    """No two rows have the same values; missing ones are equal to each other."""
    kept, listed = _kept(kwargs, _MANY, names), ", ".join(_words(names))
    groups = f"(SELECT count(*) AS k FROM {{rows}} WHERE {kept} GROUP BY {listed})"
    counted = f"SELECT {listed}, {{n}}, count(*) OVER (PARTITION BY {listed}) AS k FROM {{rows}} WHERE {kept}"
    more = tuple(names[1:])
    measures = (
        Measure("coalesce(sum(k), 0)::BIGINT", names[0], rows=groups, more=more),
        Measure("coalesce(sum(CASE WHEN k > 1 THEN k END), 0)::BIGINT", names[0], rows=groups, more=more),
    )
    examples = (_first_rows(names, kinds, "true", f"({counted}) WHERE k > 1"),)
    return ScanQuestion(measures, mostly_of(kwargs), Broken(lambda of, broken: (of, broken), examples))


def _in_each_row(
    kwargs: Arguments, names: Sequence[str], kinds: Sequence[Kind], condition: str, kept: str
) -> ScanQuestion:
    """The question whether a condition holds in the rows that are kept; of a missing value, it does not.

    Whole numbers beside missing ones are float64 to pandas: beyond what that holds exactly, nothing is shown.
    """
    broken = f"({kept}) AND NOT coalesce({condition}, false)"
    more = tuple(names[1:])
    size = " + ".join(f"coalesce(max(abs({word}::HUGEINT)), 0)" for word in _words(names)) if "whole" in kinds else "0"
    measures = tuple(
        Measure(sql, names[0], more=more)
        for sql in (f"count(CASE WHEN {kept} THEN 1 END)", f"count(CASE WHEN {broken} THEN 1 END)", size)
    )
    enough = mostly_of(kwargs)

    def holds(of: int, count: int, size: int) -> bool:
        return size < EXACT and enough(of, count)

    def counts(of: int, count: int, size: int) -> tuple[int, int] | None:
        return (of, count) if size < EXACT else None

    return ScanQuestion(measures, holds, Broken(counts, (_first_rows(names, kinds, broken),)))


def _words(names: Sequence[str]) -> list[str]:
    return ["{c" + (str(at) if at else "") + "}" for at in range(len(names))]


def _kept(kwargs: Arguments, rules: dict[str, str], names: Sequence[str]) -> str:
    """The condition that `ignore_row_if` does not leave a row out."""
    joined = rules[kwargs.get("ignore_row_if", next(iter(rules)))]
    return f"NOT ({joined.join(f'{word} IS NULL' for word in _words(names))})" if joined else "true"


def _first_rows(names: Sequence[str], kinds: Sequence[Kind], condition: str, rows: str | None = None) -> Measure:
    """The first rows that meet a condition: their numbers, and for each column its values and whether they are missing.

    Not structures: DuckDB would sort them by bytes of its own, in which -0.0 is 0.0. Nor values alone: it leaves out
    those that are missing.
    """
    of = f"CASE WHEN {condition} THEN {{n}} END"
    parts = [f"'n': min({of}, {EXAMPLES})"]
    for at, (word, kind) in enumerate(zip(_words(names), kinds, strict=True)):
        parts.append(f"'v{at}': arg_min(coalesce({word}, {_FILLER[kind]}), {of}, {EXAMPLES})")
        parts.append(f"'m{at}': arg_min({word} IS NULL, {of}, {EXAMPLES})")
    sql = "{{" + ", ".join(parts) + "}}"
    found = Measure(sql, names[0], more=tuple(names[1:]))
    return found if rows is None else found._replace(rows=rows)


def values_of(shown: Mapping[str, Sequence[Any]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    """What the first rows hold, a value for each column.

    Args:
        shown: the value of `_first_rows`'s measure.
    """
    columns = [
        [None if missing else value for value, missing in zip(shown[f"v{at}"], shown[f"m{at}"], strict=True)]
        for at in range(len(names))
    ]
    return list(zip(*columns, strict=True))
