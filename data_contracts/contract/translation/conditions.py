"""Translates a `row_condition` into SQL where that keeps exactly the rows that pandas keeps.

Translated are comparisons of one column with a literal, `in`, null checks, and these joined by `and` and `or`. Without
`not`, it does not matter whether a comparison with a missing value is false or unknown: the row is left out. What
depends on the type that pandas gives a column beside missing values (`!=` of whole numbers), rounds the literal
(float32), or compares texts by order stays with pandas (`data_contracts.contract.row_condition`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from data_contracts.contract.measures import Where
from data_contracts.contract.row_condition import ConditionError, Tree, read_condition
from data_contracts.contract.translation.questions import EXACT, Kind, is_flag, is_number, is_text

# Of each column of the data, how DuckDB sees it; None if it does not.
Kinds = Mapping[str, Kind | None]
_SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MOST = 100  # conditions, or values of a set


def condition_sql(condition: Any, kinds: Kinds) -> Where | None:
    """The rows that meet a `row_condition` as a suite states it; None if it has no exact translation."""
    try:
        read = read_condition(condition)
    except ConditionError:
        return None  # refused where Great Expectations would carry it out
    columns: list[str] = []
    values: list[Any] = []
    sql = None if read is None else _joined(read.tree, kinds, columns, values)
    return None if sql is None or len(values) > _MOST else Where(sql, tuple(columns), tuple(values))


class _AnyColumn(dict[str, Kind | None]):
    """Every column, of whatever kind lets a comparison be translated."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Kind | None:
        return "any"  # type: ignore[return-value]


def is_translatable(condition: Any) -> bool:
    """Whether a `row_condition` has an exact translation for columns of some types."""
    return condition_sql(condition, _AnyColumn()) is not None


def _joined(tree: Tree, kinds: Kinds, columns: list[str], values: list[Any]) -> str | None:
    """The SQL of a condition; adds what it reads to `columns` and what it binds to `values`."""
    kind = tree["type"]
    if kind in ("and", "or"):
        found = [_joined(part, kinds, columns, values) for part in tree["conditions"]]
        return None if None in found else "(" + f" {kind.upper()} ".join(map(str, found)) + ")"
    name = None if kind == "not" else tree["column"]["name"]
    if name is None or name not in kinds:
        return None
    if name not in columns:
        columns.append(name)
    of = "{w" + str(columns.index(name)) + "}"
    if kind == "nullity":
        return None if kinds[name] is None else f"{of} IS {'' if tree['is_null'] else 'NOT '}NULL"
    sql = _comparison(of, tree["operator"], tree["parameter"], kinds[name])
    if sql is not None:
        given = tree["parameter"]
        values.append(tuple(given) if isinstance(given, list) else given)
    return sql


def _comparison(of: str, operator: Any, literal: Any, kind: Kind | None) -> str | None:
    if kind == "any":  # type: ignore[comparison-overlap]
        return next((sql for one in _LITERALS if (sql := _comparison(of, operator, literal, one))), None)
    accepts = _LITERALS.get(kind) if kind is not None else None
    if accepts is None:
        return None
    if operator in ("IN", "NOT_IN"):
        if not isinstance(literal, list) or not 0 < len(literal) <= _MOST or len(set(map(type, literal))) > 1:
            return None
        type_ = {accepts(one) for one in literal}
        if len(type_) > 1 or None in type_ or kind == "flag":
            return None
        sql = f"list_contains(?::{type_.pop()}[], {_as(of, literal[0], kind)})"
        if operator == "IN":
            return sql
        return f"({of} IS NULL OR NOT {sql})" if kind in ("real", "text") else None
    named, sign = accepts(literal), _SIGNS.get(operator) if isinstance(operator, str) else None
    if named is None or sign is None or (kind in ("text", "flag") and operator not in ("==", "!=")):
        return None
    sql = f"{_as(of, literal, kind)} {sign} ?::{named}"
    if operator != "!=":
        return sql
    # A missing value is not equal to anything, where pandas holds it as NaN whatever the other rows are.
    return f"({of} IS NULL OR {sql})" if kind in ("real", "text") else None


def _number(value: Any) -> str | None:
    # Below 2**53, rounding of the other side cannot cross it.
    if not is_number(value) or abs(value) >= EXACT:
        return None
    return "BIGINT" if type(value) is int else "DOUBLE"


_LITERALS: dict[Kind, Callable[[Any], str | None]] = {
    "whole": _number,
    "real": lambda value: "DOUBLE" if _number(value) else None,
    "text": lambda value: "VARCHAR" if is_text(value) else None,
    "flag": lambda value: "BOOLEAN" if is_flag(value) else None,
}


def _as(of: str, literal: Any, kind: Kind | None) -> str:
    return f"{of}::{'BIGINT' if type(literal) is int else 'DOUBLE'}" if kind == "whole" else of
