"""Compares two contract reports: what newly breaks, what healed, and what is broken in both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.handoffs import ContractReport, Failure

Key = tuple[str, str | None, int]


@dataclass(frozen=True)
class Change:
    """An expectation that is broken in one report or in both.

    Attributes:
        before, after: the rows that broke it; None where it holds. 0 if it is about a whole column or table.
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
class Difference:
    """Two reports side by side: the rows of both, whether the suite is another one, and the changes, new ones first."""

    before: ContractReport
    after: ContractReport
    changes: list[Change]

    @property
    def other_suite(self) -> bool:
        """Whether the reports are of two different suites, so that an expectation may be missing instead of kept."""
        return self.before.suite_digest != self.after.suite_digest


_ORDER = ("broken", "worse", "same", "better", "healed")


def difference(before: ContractReport, after: ContractReport) -> Difference:
    """What changed from one report to the other. The same expectation twice on a column is told apart by its order."""
    old, new = _by_key(before.failures), _by_key(after.failures)
    changes = []
    for key in dict.fromkeys([*new, *old]):
        was, now = old.get(key), new.get(key)
        told = now or was
        assert told is not None
        changes.append(
            Change(
                expectation=told.expectation,
                column=told.column,
                severity=told.severity,
                before=None if was is None else was.rows,
                after=None if now is None else now.rows,
                sentence=told.sentence,
            )
        )
    return Difference(before, after, sorted(changes, key=lambda change: _ORDER.index(change.kind)))


def _by_key(failures: Sequence[Failure]) -> dict[Key, Failure]:
    seen: Counter[tuple[str, str | None]] = Counter()
    found = {}
    for failure in failures:
        name = failure.expectation, failure.column
        found[(*name, seen[name])] = failure
        seen[name] += 1
    return found
