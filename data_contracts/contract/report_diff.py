"""Compares two contract reports: what is newly broken, what healed, and what is broken in both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.drift_report import ColumnDrift
from data_contracts.handoffs import ContractReport, Failure

Key = tuple[str, str | None, int]


@dataclass(frozen=True)
class Change:
    """An expectation that is broken in one report or in both.

    Attributes:
        before, after: the rows that broke it, those that were set aside included; None where it holds. 0 if it is about
            a whole column or table.
    """

    expectation: str
    column: str | None
    severity: str
    before: int | None
    after: int | None
    sentence: str

    @property
    def kind(self) -> str:
        """`broken` (newly), `healed`, `worse`, `better` or `same`."""
        if self.before is None:
            return "broken"
        if self.after is None:
            return "healed"
        return "worse" if self.after > self.before else "better" if self.after < self.before else "same"

    def to_json(self) -> dict[str, Any]:
        """The change as objects that JSON can hold."""
        return {**vars(self), "kind": self.kind}


@dataclass(frozen=True)
class Moved:
    """A column that had moved against earlier data: what each report says of it, None where it had not."""

    column: str
    before: ColumnDrift | None
    after: ColumnDrift | None

    @property
    def kind(self) -> str:
        """`broken` (newly moved), `healed` (no longer) or `same`."""
        return "broken" if self.before is None else "healed" if self.after is None else "same"

    @property
    def sentence(self) -> str:
        """What moved, as the later report that has it says."""
        found = self.after or self.before
        assert found is not None
        return found.sentence

    def to_json(self) -> dict[str, Any]:
        """The change as objects that JSON can hold."""
        verdicts = [None if one is None else one.verdict for one in (self.before, self.after)]
        return {"column": self.column, "kind": self.kind, "verdicts": verdicts, "sentence": self.sentence}


@dataclass(frozen=True)
class Difference:
    """Two reports side by side: the rows of both, whether the suite is another one, and the changes, new ones first."""

    before: ContractReport
    after: ContractReport
    changes: list[Change]

    @property
    def set_aside(self) -> tuple[int, int]:
        """Rows that were set aside, in each report."""
        before, after = (0 if one.quarantine is None else one.quarantine.rows for one in (self.before, self.after))
        return before, after

    @property
    def moved(self) -> list[Moved]:
        """Columns that had moved against earlier data in one report or in both, new ones first."""
        old, new = _by_column(self.before), _by_column(self.after)
        found = [Moved(name, old.get(name), new.get(name)) for name in dict.fromkeys([*new, *old])]
        return sorted(found, key=lambda one: _ORDER.index(one.kind))

    @property
    def other_suite(self) -> bool:
        """Whether the reports are of two different suites, so that an expectation may be missing instead of kept."""
        return self.before.suite_digest != self.after.suite_digest


_ORDER = ("broken", "worse", "same", "better", "healed")


def difference(before: ContractReport, after: ContractReport) -> Difference:
    """What changed from one report to the other. Equal expectations on one column are distinguished by their order."""
    old, new = _by_key(_broken(before)), _by_key(_broken(after))
    changes = []
    for key in dict.fromkeys([*new, *old]):
        was, now = old.get(key), new.get(key)
        shown = now or was
        assert shown is not None
        changes.append(
            Change(
                expectation=shown.expectation,
                column=shown.column,
                severity=shown.severity,
                before=None if was is None else was.rows,
                after=None if now is None else now.rows,
                sentence=shown.sentence,
            )
        )
    return Difference(before, after, sorted(changes, key=lambda change: _ORDER.index(change.kind)))


def _broken(report: ContractReport) -> list[Failure]:
    """The failures, and the expectations that only rows that were set aside broke."""
    return [*report.failures, *(report.quarantine.broken if report.quarantine is not None else [])]


def _by_column(report: ContractReport) -> dict[str, ColumnDrift]:
    return {one.column: one for one in (report.drift.moved if report.drift is not None else [])}


def _by_key(failures: Sequence[Failure]) -> dict[Key, Failure]:
    seen: Counter[tuple[str, str | None]] = Counter()
    found = {}
    for failure in failures:
        name = failure.expectation, failure.column
        found[(*name, seen[name])] = failure
        seen[name] += 1
    return found
