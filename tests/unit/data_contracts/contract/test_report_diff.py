"""Two reports: what newly breaks, what healed, what is broken in both."""

from __future__ import annotations

from data_contracts.contract.reports import changes
from data_contracts.handoffs import ContractReport, Failure, Quarantine


def report(*failures: tuple[str, str, int]) -> ContractReport:
    broken = [
        Failure(expectation=name, column=column, severity="critical", rows=rows, sentence=name)
        for name, column, rows in failures
    ]
    return ContractReport(key="k", accepted=not broken, rows=10, expectations=5, failures=broken, suite_digest="s")


def test_each_change_has_its_kind_and_new_ones_come_first() -> None:
    before = report(("null", "a", 3), ("set", "b", 2), ("set", "b", 9), ("max", "c", 0), ("range", "d", 4))
    after = report(("set", "b", 2), ("set", "b", 12), ("new", "a", 1), ("max", "c", 0), ("range", "d", 1))
    found = [(one.kind, one.expectation, one.column, one.before, one.after) for one in changes(before, after)]
    assert found == [
        ("broken", "new", "a", None, 1),
        ("worse", "set", "b", 9, 12),
        ("same", "set", "b", 2, 2),
        ("same", "max", "c", 0, 0),
        ("better", "range", "d", 4, 1),
        ("healed", "null", "a", 3, None),
    ]


def test_rows_that_were_set_aside_are_still_broken() -> None:
    before, after = report(("null", "a", 3)), report(("null", "a", 5))
    aside = Quarantine(rows=5, broken=after.failures)
    after = after.model_copy(update={"accepted": True, "failures": [], "quarantine": aside})
    assert [(one.kind, one.before, one.after) for one in changes(before, after)] == [("worse", 3, 5)]
