"""Which conditions on rows become SQL, and what they say; what pandas may see otherwise is left to it."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.contract.questions import Kind
from data_contracts.contract.translation import condition_sql, is_translatable

KINDS: dict[str, Kind | None] = {
    "n": "whole", "r": "real", "f": "short", "t": "text", "b": "flag", "at": "time", "price": None, "from": "whole",
}  # fmt: skip


def leaf(name: str, operator: str, parameter: Any) -> dict[str, Any]:
    return {"type": "comparison", "column": {"name": name}, "operator": operator, "parameter": parameter}


WRITTEN: list[tuple[Any, str]] = [
    (leaf("n", ">=", 3), "{w0}::BIGINT >= ?::BIGINT"),
    (leaf("n", "==", 0.5), "{w0}::DOUBLE = ?::DOUBLE"),
    (leaf("r", "!=", 1), "({w0} IS NULL OR {w0} <> ?::DOUBLE)"),
    (leaf("t", "NOT_IN", ["a"]), "({w0} IS NULL OR NOT list_contains(?::VARCHAR[], {w0}))"),
    ("n > -1 and (t == 'a' and b == True)", "({w0}::BIGINT > ?::BIGINT AND ({w1} = ?::VARCHAR AND {w2} = ?::BOOLEAN))"),
    ("n in [1, 2] or n < 0", "(list_contains(?::BIGINT[], {w0}::BIGINT) OR {w0}::BIGINT < ?::BIGINT)"),
    ({"type": "nullity", "column": {"name": "at"}, "is_null": False}, "{w0} IS NOT NULL"),
    ("at.notnull()", "{w0} IS NOT NULL"),
    ("0 < n & `from` <= 3", "({w0}::BIGINT > ?::BIGINT AND {w1}::BIGINT <= ?::BIGINT)"),
    ("0 < n < 3", "({w0}::BIGINT > ?::BIGINT AND {w0}::BIGINT < ?::BIGINT)"),
    ("(n > 1\n or n < 0)", "({w0}::BIGINT > ?::BIGINT OR {w0}::BIGINT < ?::BIGINT)"),
    (leaf("t", "==", "a`b"), "{w0} = ?::VARCHAR"),
]


@pytest.mark.parametrize(("condition", "sql"), WRITTEN, ids=str)
def test_a_condition_becomes_sql(condition: Any, sql: str) -> None:
    where = condition_sql(condition, KINDS)
    assert where.sql == sql
    assert is_translatable(condition)


LEFT: dict[str, Any] = {
    "pandas holds whole numbers beside missing ones in two ways": leaf("n", "!=", 1),
    "float32 is compared with a rounded literal": leaf("f", "==", 0.1),
    "texts in order": leaf("t", "<", "a"),
    "a text beside numbers": leaf("n", "==", "1"),
    "a time's value": leaf("at", ">", "2024-01-01"),
    "a literal that float64 may round": leaf("r", "<", 2**53),
    "a column that DuckDB does not see": {"type": "nullity", "column": {"name": "price"}, "is_null": True},
    "a column that is not there": leaf("gone", "==", 1),
    "two kinds in a set": leaf("n", "IN", [1, 0.5]),
    "no set": leaf("n", "IN", []),
    "not": "not n > 1",
    "a function": "n > n.mean()",
    "two columns": "n > r",
    "a column that is in no data": "`a b` > 1",
}


@pytest.mark.parametrize("case", LEFT)
def test_a_condition_that_pandas_may_see_otherwise_is_left_to_it(case: str) -> None:
    assert condition_sql(LEFT[case], KINDS) is None
