"""Two reports: what newly breaks, what healed, what is broken in both."""

from __future__ import annotations

from data_contracts.contract.reports import difference
from data_contracts.handoffs import ContractReport, Failure, Quarantine
from data_contracts.records import ColumnDrift, DriftReport


def report(*failures: tuple[str, str, int], suite: str = "s") -> ContractReport:
    told = [
        Failure(expectation=name, column=column, severity="critical", rows=rows, sentence=f"{name} {rows}")
        for name, column, rows in failures
    ]
    return ContractReport(key="k", accepted=not told, rows=10, expectations=5, failures=told, suite_digest=suite)


def test_each_change_has_its_kind_and_new_ones_come_first() -> None:
    before = report(("null", "a", 3), ("set", "b", 2), ("set", "b", 9), ("max", "c", 0), ("range", "d", 4))
    after = report(("set", "b", 2), ("set", "b", 12), ("new", "a", 1), ("max", "c", 0), ("range", "d", 1))
    found = difference(before, after)
    assert [(one.kind, one.expectation, one.column, one.before, one.after) for one in found.changes] == [
        ("broken", "new", "a", None, 1),
        ("worse", "set", "b", 9, 12),
        ("same", "set", "b", 2, 2),
        ("same", "max", "c", 0, 0),
        ("better", "range", "d", 4, 1),
        ("healed", "null", "a", 3, None),
    ]
    assert found.changes[-1].sentence == "null 3"
    assert not found.other_suite
    assert difference(report(), report(suite="t")).other_suite


def test_rows_that_were_set_aside_are_still_broken() -> None:
    before, after = report(("null", "a", 3)), report(("null", "a", 5))
    aside = Quarantine(rows=5, broken=after.failures)
    after = after.model_copy(update={"accepted": True, "failures": [], "quarantine": aside})
    found = difference(before, after)
    assert [(one.kind, one.before, one.after) for one in found.changes] == [("worse", 3, 5)]
    assert found.set_aside == (0, 5)


def test_columns_that_moved_in_one_or_both() -> None:
    def moved(*names: str) -> ContractReport:
        columns = [ColumnDrift(column=name, verdict="warning", p=0, nulls=(0, 0), sentence=name) for name in names]
        columns.append(ColumnDrift(column="still", verdict="same", p=1, nulls=(0, 0), sentence="still"))
        return report().model_copy(update={"drift": DriftReport(against="x", columns=columns)})

    found = difference(moved("a", "b"), moved("b", "c")).moved
    assert [(one.column, one.kind) for one in found] == [("c", "broken"), ("b", "same"), ("a", "healed")]
    assert difference(report(), report()).moved == []
