"""What a scan is asked: aggregates, and the rule that says what their values show about an expectation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

ALL = "{rows}"
DISTINCT = "count(DISTINCT {c})"


class Measure(NamedTuple):
    """An aggregate: SQL in which `{c}` stands for the column, which has neither nulls nor NaN but NULL for both, and
    `{n}` for the row's number.

    Attributes:
        sql: the aggregate; each `?` is one of `values`.
        column: the column's name; None if all rows are meant.
        values: what was written in the suite, bound as parameters.
        rows: the rows that it is over, where `{rows}`, the default, stands for all of them.
    """

    sql: str
    column: str | None = None
    values: tuple[Any, ...] = ()
    rows: str = ALL

    @property
    def distinct(self) -> bool:
        """Whether it counts distinct values, which takes memory for each."""
        return "DISTINCT" in self.sql

    @property
    def apart(self) -> bool:
        """Whether a query of its own is better for it."""
        return self.distinct or self.rows != ALL


class Broken(NamedTuple):
    """What tells of the rows that broke an expectation.

    Attributes:
        counts: from the values of the question's measures: the rows it was checked on, and those of them that broke it.
            None if the first measure of `examples` counts the latter, and the question's first the former.
        examples: further measures; the last has the first rows, as `{"n": numbers, "c": values}`, or None for
            values that are all missing.
    """

    counts: Callable[..., tuple[int, int]] | None
    examples: tuple[Measure, ...]


@dataclass(frozen=True)
class Question:
    """What a scan has to measure for one expectation.

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


ROWS = Measure("count(*)")
