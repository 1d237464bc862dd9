"""Reads a suite's `row_condition` and finds the rows that meet it.

Great Expectations gives a condition to `DataFrame.query`, where a text can run programs; but a suite is reviewed as
data. So Great Expectations never gets one. This grammar alone is read, and the rows are chosen beforehand, by the
operations of pandas that `query` would use:

    col("name"), `name` or name, compared by == != < <= > >= with a number, a text, True, False or another column;
    in and not in a list; .isnull(), .notnull(), is None, is not None, .isin([…]); joined by and, or, not, & | ~

Great Expectations' condition objects, as JSON, say the same. Nothing of a text is ever executed.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from data_contracts.expressions.syntax_trees import expression_tree

# As one of Great Expectations' conditions; besides, `not`, and {"column": name} for another column as the parameter.
Tree = dict[str, Any]
_LONGEST = 2000
_DEEPEST = 40
_SHOWN = 40
# Texts, columns' names in backticks, and the signs that pandas reads as words.
_TOKENS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|[&|]""")
_WORDS = {"&": " and ", "|": " or "}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIGNS: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "IN",
    ast.NotIn: "NOT_IN",
}  # fmt: skip
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OF_LISTS = {"==": "IN", "!=": "NOT_IN", "IN": "IN", "NOT_IN": "NOT_IN"}
_NULLNESS = {"isnull": True, "isna": True, "is_null": True, "notnull": False, "notna": False, "is_not_null": False}


class ConditionError(ValueError):
    """A condition that is not of the grammar; the message says which part of it."""


@dataclass(frozen=True)
class Condition:
    """A condition that was read.

    Attributes:
        text: the same for conditions that mean the same.
        columns: those that it reads.
    """

    text: str
    tree: Tree = field(compare=False)
    columns: tuple[str, ...] = field(compare=False)


def read_condition(written: Any) -> Condition | None:
    """The condition that a suite's `row_condition` states; None if it states none.

    Args:
        written: a text, or one of Great Expectations' conditions as JSON.

    Raises:
        ConditionError: a part of it is not of the grammar.
    """
    if not written:
        return None
    columns: dict[str, None] = {}
    tree = _of_text(written, columns) if isinstance(written, str) else _of_object(written, columns, 0)
    return Condition(json.dumps(tree), tree, tuple(columns))


def _of_text(text: str, columns: dict[str, None]) -> Tree:
    if len(text) > _LONGEST:
        raise ConditionError(f"it has {len(text):,} characters; at most {_LONGEST:,} are read")
    plain = _TOKENS.sub(_plain, text.strip())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = expression_tree(plain)
    except SyntaxError as error:
        rest = plain[error.offset - 1 :] if error.offset and error.lineno == 1 else plain
        raise ConditionError(f"{error.msg} at {_short(rest)}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConditionError("it is nested too deeply, or holds a character that no text can have") from error
    return _Text(plain, columns).condition(tree, 0)


def _plain(match: re.Match[str]) -> str:
    token = match[0]
    return _WORDS.get(token) or (f"col({token[1:-1]!r})" if token[0] == "`" else token)


def _short(part: str) -> str:
    return repr(part if len(part) <= _SHOWN else f"{part[: _SHOWN - 1]}…")


@dataclass(frozen=True)
class _Text:
    """Reads the tree that Python's parser makes of a text."""

    text: str
    columns: dict[str, None]

    def condition(self, node: ast.expr, depth: int) -> Tree:
        """Something that is true or false."""
        if depth > _DEEPEST:
            raise self._refused(node)
        match node:
            case ast.BoolOp(op=joins, values=values):
                parts = [self.condition(value, depth + 1) for value in values]
                return {"type": "and" if isinstance(joins, ast.And) else "or", "conditions": parts}
            case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
                return {"type": "not", "conditions": [self.condition(operand, depth + 1)]}
            case ast.Compare(left=left, ops=signs, comparators=others):
                pairs = zip([left, *others], signs, others, strict=False)
                parts = [self._comparison(node, *pair) for pair in pairs]
                return parts[0] if len(parts) == 1 else {"type": "and", "conditions": parts}
            case ast.Call(func=ast.Attribute(value=of, attr=method), args=[], keywords=[]):
                if (is_null := _NULLNESS.get(method.lower())) is not None:
                    return {"type": "nullity", "column": self._column(of), "is_null": is_null}
            case ast.Call(func=ast.Attribute(value=of, attr="isin"), args=[listed], keywords=[]):
                return _compared(self._column(of), "IN", self._value(listed))
        raise self._refused(node)

    def _comparison(self, whole: ast.expr, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Tree:
        if isinstance(sign, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None:
            return {"type": "nullity", "column": self._column(left), "is_null": isinstance(sign, ast.Is)}
        named = _SIGNS.get(type(sign))
        if named in _TURNED and isinstance(left, ast.Constant | ast.UnaryOp):
            left, named, right = right, _TURNED[named], left
        value = self._value(right)
        if named is None or (isinstance(value, list) and named not in _OF_LISTS):
            raise self._refused(whole)
        if named in ("IN", "NOT_IN") and not isinstance(value, list):
            raise self._refused(right)
        return _compared(self._column(left), named, value)

    def _column(self, node: ast.expr) -> Tree:
        match node:
            case (
                ast.Name(id=name) | ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[])
            ):
                self.columns[name] = None
                return {"name": name}
        raise self._refused(node)

    def _value(self, node: ast.expr) -> Any:
        """A number, a text, a flag, a list of these, or a column."""
        match node:
            case ast.Constant(value=value) if _is_literal(value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                values = [self._value(part) for part in parts]
                if all(map(_is_literal, values)):
                    return values
            case ast.Name() | ast.Call():
                return {"column": self._column(node)["name"]}
        raise self._refused(node)

    def _refused(self, node: ast.expr) -> ConditionError:
        return ConditionError(f"{_short(ast.get_source_segment(self.text, node) or self.text)} is not understood")


def _is_literal(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and not math.isnan(value))


def _compared(column: Tree, sign: str, value: Any) -> Tree:
    # To pandas, `==` a list means `in` it.
    named = _OF_LISTS[sign] if isinstance(value, list) else sign
    return {"type": "comparison", "column": column, "operator": named, "parameter": value}


def _of_object(tree: Any, columns: dict[str, None], depth: int) -> Tree:
    match tree:
        case {"type": "and" | "or" as joins, "conditions": [_, *_] as parts} if depth <= _DEEPEST:
            return {"type": joins, "conditions": [_of_object(part, columns, depth + 1) for part in parts]}
        case {"type": "nullity", "column": {"name": str(name)}, "is_null": bool(is_null)}:
            columns[name] = None
            return {"type": "nullity", "column": {"name": name}, "is_null": is_null}
        case {"type": "comparison", "column": {"name": str(name)}, "operator": str(sign), "parameter": value}:
            several = isinstance(value, list) and all(map(_is_literal, value)) and sign in _OF_LISTS
            if several or (_is_literal(value) and sign in COMPARE):
                columns[name] = None
                return _compared({"name": name}, sign, value)
        case {"type": "pass_through", "pass_through_filter": str(text)}:
            return _of_text(text, columns)
    raise ConditionError(f"{_short(json.dumps(tree, ensure_ascii=False))} is not understood")
