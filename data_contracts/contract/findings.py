"""The findings of a check in words: failures with sentences that never contain a sensitive value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.arrow_rows import Numbers
from data_contracts.contract.suites import SEVERITIES
from data_contracts.handoffs import Expectation, Failure, Quarantine
from data_contracts.quoting import (
    MASK,
    MOST_VALUE,
    columns_shown,
    escaped,
    name_shown,
    nearest_name,
    value_shown,
    withholds,
)

EXAMPLES = 20
_LISTED = 5
_COLUMNS_LISTED = 30


@dataclass(frozen=True)
class Outcome:
    """The result of `engine.check`.

    Attributes:
        accepted: no failure has a severity that rejects.
        rows: rows read.
        expectations: expectations in the suite.
        failures: the expectations that did not hold, the gravest first, then in the suite's order.
        indices: the index in the suite of each of them; empty if no expectation was checked.
    """

    accepted: bool
    rows: int
    expectations: int
    failures: list[Failure] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)


def outcome(rows: int, expectations: int, failures: Mapping[int, Failure], fail_on: str) -> Outcome:
    """The outcome: rejected if a failure, here by its index in the suite, is at least as grave as `fail_on`."""
    ranked = sorted(failures, key=lambda index: (-SEVERITIES.index(failures[index].severity), index))
    accepted = not any(is_grave(failure, fail_on) for failure in failures.values())
    found = [failures[index].model_copy(update={"index": index}) for index in ranked]
    return Outcome(accepted, rows, expectations, found, ranked)


def is_grave(failure: Failure, fail_on: str) -> bool:
    """Whether a failure rejects the data, or sets rows aside."""
    return SEVERITIES.index(failure.severity) >= SEVERITIES.index(fail_on)


class Finding:
    """Builds the failures of one expectation.

    Args:
        expectation: one entry of the suite: type, kwargs, severity, description.
        columns: the columns it refers to, in order; empty for an expectation on the whole table.
        sensitive: names of all sensitive columns.
        schema: of the data; pandas shows its whole numbers as 3.0 beside nulls.
    """

    def __init__(
        self,
        expectation: Expectation,
        columns: Sequence[str],
        sensitive: Collection[str],
        schema: pa.Schema,
    ) -> None:
        self.expectation = expectation
        self.whole = {field.name for field in schema if pa.types.is_integer(field.type)}
        self.columns = list(columns)
        self.sensitive = set(sensitive)
        self.masked = bool(self.sensitive.intersection(self.columns))
        self._nothing_shown = False

    def mask(self) -> None:
        """Show no value at all, of whatever column."""
        self.masked = self._nothing_shown = True

    def missing(self, column: str, present: Sequence[str], by_condition: bool = False) -> Failure:
        """The failure for a column that does not exist.

        Args:
            by_condition: whether the row_condition names it.
        """
        listed = columns_shown(present[:_COLUMNS_LISTED], beside=column)
        listed += ", …" if len(present) > _COLUMNS_LISTED else ""
        listed = columns_shown(present, sensitive=True) if self.sensitive else listed
        near = nearest_name(column, present) or ""
        if by_condition:  # a word of a row_condition may be a value
            column = f"{'of a name' if self.sensitive else name_shown(column, near)} in its row_condition"
        else:
            column = name_shown(column, near)
        return self._failure(f"the data has no column {column} (it has {listed})")

    def broken(self, count: int, of: int, numbers: Sequence[int], values: Sequence[Any], what: str = "") -> Failure:
        """The failure for rows that broke the expectation.

        Args:
            count: how many rows broke it.
            of: how many rows it was checked on.
            numbers: the first row numbers, at most EXAMPLES.
            values: the values in those rows: a value, or one per column as a tuple or a dictionary.
            what: what is wrong with them, if there is more to say than that they broke the expectation.
        """
        first = ", ".join(map(str, numbers[:_LISTED])) + (", …" if count > _LISTED else "")
        at = f" (row{'s' if count > 1 else ''} {first})" if numbers else ""
        share = f"{count:,} of {of:,} row{'s' if of != 1 else ''}{at} "
        return self._failure(
            share + (what or f"broke it{self._settings()}"),
            rows=count,
            of=of,
            row_numbers=list(numbers[:EXAMPLES]),
            values=[self._value(value) for value in values[:EXAMPLES]],
        )

    def observed(self, value: Any) -> Failure:
        """The failure for a column or table as a whole. For a table, `value` may be the names of its columns."""
        names = bool(self.sensitive) and not self.columns and not isinstance(value, int | float)
        seen = "" if self.masked or names or value is None else value_shown(value)
        said = f"observed {seen}" if seen else "what was observed broke it"
        return self._failure(f"{said}{self._settings()}", observed=seen)

    def unclear(self, message: str, kinds: dict[str, str]) -> Failure:
        """The failure if it could not be computed: `message` is Great Expectations' own, `kinds` the columns' types."""
        of = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        said = message.strip().rstrip(".")
        # Where texts are withheld, the reason only says where the text is.
        condition = self.expectation["kwargs"].get("row_condition")
        hidden = self.masked or (self.sensitive and condition)
        reason = said if withholds() else "" if hidden else escaped(said, MOST_VALUE)
        where = (
            f" on the rows of its row_condition{'' if hidden else f' {escaped(str(condition), MOST_VALUE)}'}"
            if condition
            else ""
        )
        return self._failure(f"it could not be computed{where}{f' ({of})' if of else ''}{': ' * bool(reason)}{reason}")

    def _failure(self, what: str, **fields: Any) -> Failure:
        on = f" on {', '.join(self.columns)}" if self.columns else ""
        description = self.expectation.get("description")
        said = f" [{escaped(description, MOST_VALUE)}]" if description else ""
        return Failure(
            expectation=self.expectation["type"],
            column=", ".join(self.columns) or None,
            severity=self.expectation["severity"],
            **{"rows": 0, **fields},
            sentence=f"{self.expectation['type']}{on}: {what}{said}",
        )

    def _settings(self) -> str:
        """The expected values. Bounds and sets for a sensitive column may be values of it, so they are left out."""
        names = ("column", "column_A", "column_B", "column_list")
        asked = {key: value for key, value in self.expectation["kwargs"].items() if key not in names}
        if self.masked or (self.sensitive and "row_condition" in asked) or not asked:
            return ""
        return "; expected " + escaped(", ".join(f"{key} {value}" for key, value in asked.items()), MOST_VALUE)

    def _value(self, value: Any) -> str:
        parts = None if self._nothing_shown else _parts(value, self.columns)
        if parts is None:
            return MASK if self.masked else self._shown(self.columns[0] if self.columns else "", value)
        return ", ".join(
            f"{name}={MASK if name in self.sensitive else self._shown(name, one)}" for name, one in parts.items()
        )

    def _shown(self, column: str, value: Any) -> str:
        return value_shown(
            int(value) if column in self.whole and isinstance(value, float) and value == value else value
        )


def rejected(rows: int, expectations: int, what: str, sentence: str) -> Outcome:
    """The outcome for data or a suite in which nothing can be checked."""
    failure = Failure(expectation=what, column=None, severity="critical", rows=0, sentence=sentence)
    return Outcome(False, rows, expectations, [failure])


def _parts(value: Any, columns: Sequence[str]) -> Mapping[str, object] | None:
    if len(columns) < 2:
        return None
    if isinstance(value, dict):
        return value
    return dict(zip(columns, value, strict=True)) if isinstance(value, tuple) and len(value) == len(columns) else None


@dataclass(frozen=True)
class Judged:
    """The outcome of a check in which rows may be set aside.

    Attributes:
        quarantine: None if no row had to be set aside.
        rows: the sorted numbers of the rows that were set aside.
        broken: for each expectation that they broke, its name with its columns, and the numbers of its rows.
    """

    outcome: Outcome
    quarantine: Quarantine | None = None
    rows: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    broken: list[tuple[str, Numbers]] = field(default_factory=list)
