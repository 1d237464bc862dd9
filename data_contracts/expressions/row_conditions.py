"""Reads a condition on rows, such as `age > 60 and country == 'DE'`, as a tree of the few kinds that are permitted.

A spec may come from somebody who is not trusted with code, so nothing but these is read: columns, numbers, texts,
comparisons, `in`, `is None`, `and`, `or`, `not` and the four operations of arithmetic. Python's parser makes the tree;
nothing of it is ever executed. `data_contracts.expressions.row_masks` finds the rows.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

from data_contracts.expressions.syntax_trees import expression_tree

_LONGEST = 2000
_DEEPEST = 40
_MOST_LISTED = 1000
_COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_ALLOWED = "use columns, numbers, texts, comparisons, in, is None, and, or, not, + - * /"
_MOST_INTEGER = 2**63


class ConditionError(ValueError):
    """A condition that cannot be read; the message is the end of a sentence."""


@dataclass(frozen=True)
class Condition:
    """A condition that was read.

    Attributes:
        tree: of permitted nodes only; columns: their names, in the order in which they occur.
    """

    text: str
    tree: ast.expr
    columns: tuple[str, ...]


def read_condition(text: str) -> Condition:
    """The tree of a condition; ConditionError saying where and what is wrong."""
    if len(text) > _LONGEST:
        raise ConditionError(f"must have at most {_LONGEST:,} characters, and has {len(text):,}")
    text = text.strip()
    try:
        tree = expression_tree(text)
    except SyntaxError as error:
        before = sum(len(line) + 1 for line in text.splitlines()[: (error.lineno or 1) - 1])
        at = before + error.offset if error.offset else len(text) + 1  # without an offset, the end came too early
        raise ConditionError(f"cannot be read at character {at}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ConditionError("cannot be read") from None
    columns: dict[str, None] = {}
    _Reading(text, columns).condition(tree, 0)
    if not columns:
        raise ConditionError("names no column")
    return Condition(text, tree, tuple(columns))


def column_of(node: ast.expr) -> str | None:
    """The column that a node names, as `age` or `col('odd name')`; None for another node."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col":
        name = node.args[0] if len(node.args) == 1 and not node.keywords else None
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    return None


def is_missing(node: ast.expr) -> bool:
    """Whether a node is `None`."""
    return isinstance(node, ast.Constant) and node.value is None


@dataclass(frozen=True)
class _Reading:
    """Goes through a tree and refuses what is not permitted."""

    text: str
    columns: dict[str, None]

    def condition(self, node: ast.expr, depth: int) -> None:
        """Something that is true or false."""
        self._check_depth(node, depth)
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self.condition(part, depth + 1)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.condition(node.operand, depth + 1)
        elif isinstance(node, ast.Compare):
            self._comparison(node, depth + 1)
        elif (name := column_of(node)) is not None:
            self.columns[name] = None
        else:
            raise self._refused(node, "is not a condition")

    def _comparison(self, node: ast.Compare, depth: int) -> None:
        sides = [node.left, *node.comparators]
        for left, comparison, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(comparison, ast.In | ast.NotIn):
                self._listed(right)
            elif is_missing(right):
                if not isinstance(comparison, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
                    raise self._refused(node, "compares with None, which has no order; write `is None`")
            elif isinstance(comparison, _COMPARED):
                self._value(right, depth)
            else:
                raise self._refused(node, "is not permitted; `is` is for None alone")
            if len(node.ops) > 1 and not isinstance(comparison, _COMPARED):
                raise self._refused(node, "joins several comparisons; write them with `and`")
            if left is node.left:
                self._value(left, depth)

    def _listed(self, node: ast.expr) -> None:
        if not isinstance(node, ast.List | ast.Tuple | ast.Set) or not node.elts:
            raise self._refused(node, "must be a list of values, such as ['DE', 'AT']")
        if len(node.elts) > _MOST_LISTED:
            raise self._refused(node, f"has more than {_MOST_LISTED:,} values")
        for one in node.elts:
            if column_of(one) is not None or isinstance(one, ast.BinOp):
                raise self._refused(one, "must be a number or a text")
            self._value(one, 0)

    def _value(self, node: ast.expr, depth: int) -> None:
        """A column, a number, a text, or arithmetic."""
        self._check_depth(node, depth)
        if (name := column_of(node)) is not None:
            self.columns[name] = None
        elif isinstance(node, ast.Constant):
            self._constant(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
            self._value(node.left, depth + 1)
            self._value(node.right, depth + 1)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            self._value(node.operand, depth + 1)
        else:
            raise self._refused(node, "is not permitted")

    def _constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool | str):
            return
        if not isinstance(value, int | float):
            raise self._refused(node, "is not a number or a text")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refused(node, "is not a finite number")
        if isinstance(value, int) and value >= _MOST_INTEGER:
            raise self._refused(node, "is larger than any number of 64 bits")

    def _check_depth(self, node: ast.expr, depth: int) -> None:
        if depth > _DEEPEST:
            raise self._refused(node, f"is nested deeper than {_DEEPEST} levels")

    def _refused(self, node: ast.expr, why: str) -> ConditionError:
        part = ast.get_source_segment(self.text, node) or ""
        short = part if len(part) <= 60 else f"{part[:57]}..."
        line = self.text.splitlines()[node.lineno - 1].encode()
        before = sum(len(one) + 1 for one in self.text.splitlines()[: node.lineno - 1])
        at = before + len(line[: node.col_offset].decode()) + 1
        hint = f"; {_ALLOWED}" if why == "is not permitted" else ""
        return ConditionError(f"cannot be read at character {at}: {short!r} {why}{hint}")
