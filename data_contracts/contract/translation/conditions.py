"""Translates a `row_condition` into SQL where that keeps exactly the rows that pandas keeps.

Great Expectations turns its conditions into a query of pandas, or hands a text on to pandas as it is. Translated are
comparisons of one column with a literal, `in`, null checks, and these joined by `and` and `or`. Without `not`, it does
not matter whether a comparison with a missing value is false or unknown: the row is left out. What depends on the type
that pandas gives a column beside missing values (`!=` of whole numbers), rounds the literal (float32), or compares
texts by order stays with pandas.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from data_contracts.contract.measures import Where
from data_contracts.contract.syntax import OF_PANDAS
from data_contracts.contract.translation.questions import EXACT, Kind, is_flag, is_number
from data_contracts.expressions.syntax_trees import syntax_tree

# Of each column of the data, how DuckDB sees it; None if it does not.
Kinds = Mapping[str, Kind | None]
Tree = Mapping[str, Any]
# Texts that pandas' own reading of a query cannot change.
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/+-]*")
_SIGNS = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OPERATORS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "IN",
    ast.NotIn: "NOT_IN",
}  # fmt: skip
_MOST = 100  # Great Expectations refuses more conditions


def condition_sql(condition: Any, parser: Any, kinds: Kinds) -> Where | None:
    """The rows that meet a `row_condition`; None if it has no exact translation.

    Args:
        condition: a text, or the JSON of one of Great Expectations' conditions.
        parser: `condition_parser`; None or "pandas" for a text that pandas reads.
    """
    tree = condition
    if isinstance(condition, str):
        tree = _parsed(condition) if parser in (None, "pandas") else None
    if not isinstance(tree, dict):
        return None
    columns: list[str] = []
    values: list[Any] = []
    sql = _joined(tree, kinds, columns, values)
    return None if sql is None or len(values) > _MOST else Where(sql, tuple(columns), tuple(values))


class _AnyColumn(dict[str, Kind | None]):
    """Every column, of whatever kind lets a comparison be translated."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Kind | None:
        return "any"  # type: ignore[return-value]


def is_translatable(condition: Any, parser: Any) -> bool:
    """Whether a `row_condition` has an exact translation for columns of some types."""
    return condition_sql(condition, parser, _AnyColumn()) is not None


def _joined(tree: Tree, kinds: Kinds, columns: list[str], values: list[Any], above: str = "") -> str | None:
    """The SQL of a condition; adds what it reads to `columns` and what it binds to `values`."""
    kind = tree.get("type")
    if kind in ("and", "or"):
        parts = tree.get("conditions")
        # Great Expectations refuses an `or` within another condition.
        if set(tree) != {"type", "conditions"} or not isinstance(parts, list) or not parts or (kind == "or" and above):
            return None
        found = [_joined(one, kinds, columns, values, kind) if isinstance(one, dict) else None for one in parts]
        return None if None in found else "(" + f" {kind.upper()} ".join(map(str, found)) + ")"
    name = _name(tree)
    if name is None or name not in kinds:
        return None
    if name not in columns:
        columns.append(name)
    of = "{w" + str(columns.index(name)) + "}"
    if kind == "nullity" and set(tree) == {"type", "column", "is_null"} and is_flag(tree["is_null"]):
        return None if kinds[name] is None else f"{of} IS {'' if tree['is_null'] else 'NOT '}NULL"
    if kind != "comparison" or set(tree) != {"type", "column", "operator", "parameter"}:
        return None
    sql = _comparison(of, tree["operator"], tree["parameter"], kinds[name])
    if sql is not None:
        given = tree["parameter"]
        values.append(tuple(given) if isinstance(given, list) else given)
    return sql


def _name(tree: Tree) -> str | None:
    """The column of a condition, if its name means itself in a query of pandas."""
    column = tree.get("column")
    name = column.get("name") if isinstance(column, dict) and len(column) == 1 else None
    plain = isinstance(name, str) and name.isascii() and name.isidentifier()
    return name if plain and not keyword.iskeyword(str(name)) and name not in OF_PANDAS else None


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
    "text": lambda value: "VARCHAR" if isinstance(value, str) and _PLAIN.fullmatch(value) else None,
    "flag": lambda value: "BOOLEAN" if is_flag(value) else None,
}


def _as(of: str, literal: Any, kind: Kind | None) -> str:
    return f"{of}::{'BIGINT' if type(literal) is int else 'DOUBLE'}" if kind == "whole" else of


def _parsed(text: str) -> dict[str, Any] | None:
    """The tree of a condition in pandas' query language; None if it is not one of those translated."""
    if len(text.strip().splitlines()) != 1:
        return None  # pandas refuses such a text, or reads its lines as several expressions
    try:
        return _tree(syntax_tree(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tree(node: ast.expr) -> dict[str, Any] | None:
    if isinstance(node, ast.BoolOp):
        parts = [_tree(one) for one in node.values]
        return None if None in parts else {"type": "and" if isinstance(node.op, ast.And) else "or", "conditions": parts}
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.left, ast.Name):
        return None
    operator = _OPERATORS.get(type(node.ops[0]))
    parameter = _literal(node.comparators[0])
    if operator is None or parameter is None or (operator in ("IN", "NOT_IN")) != isinstance(parameter, list):
        return None
    return {"type": "comparison", "column": {"name": node.left.id}, "operator": operator, "parameter": parameter}


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.List):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return node.value if isinstance(node, ast.Constant) else None
