"""A scan's question: aggregates, and the rule that says what their values show about an expectation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

ALL = "{rows}"
DISTINCT = "count(DISTINCT {c})"
_BREAKING = ("count(CASE WHEN NOT (", ") THEN 1 END)")


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
class Question:
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

    def among(self, where: Where) -> Question:
        """The question about the rows that meet a condition."""
        measures = tuple(one._replace(where=where) for one in self.measures)
        if self.broken is None:
            return replace(self, measures=measures)
        examples = tuple(one._replace(where=where) for one in self.broken.examples)
        return replace(self, measures=measures, broken=self.broken._replace(examples=examples))


ROWS = Measure("count(*)")
