"""Reads expressions that users write in a spec, over metrics and over rows; none of them runs as code.

An expression over metrics, such as `accuracy - 0.1 * hard/loss`, has + - * / of numbers and names, and brackets. A
metric of a set is written as everywhere, `<set>/<metric>`: where such a name is known, its slash does not divide. Why a
metric has no value is said in words: of the order of scores, torchmetrics calls it 0 or 1, and the gates do not.

A condition on rows, such as `age > 60 and country == 'DE'`, is read as a tree of the few kinds that are permitted: a
spec may come from somebody who is not trusted with code, so nothing is read but columns, numbers, texts, comparisons,
`in`, `is None`, `and`, `or`, `not` and the four operations of arithmetic. `data_contracts.arrow_rows` finds the rows.

Python source is parsed here in a process with several threads: CPython 3.11 and 3.12 count the depth of a tree in a
variable that all threads share. So `ast.parse` may raise SystemError if another thread parses meanwhile, as Prefect
does (https://github.com/python/cpython/issues/106905).
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

_TWO: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_ONE: dict[type, Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_MOST = 1_000  # characters of an expression over metrics
_SHORT = "__metric_"
NO_VALUE = "its formula has no value for these rows"
# Of a condition on rows: its characters and levels, and the values of a list in it.
_LONGEST = 2000
_DEEPEST = 40
_MOST_LISTED = 1000
_COMPARED = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_ALLOWED = "use columns, numbers, texts, comparisons, in, is None, and, or, not, + - * /"
_MOST_INTEGER = 2**63
TRIES = 20


class _UnknownName(Exception):
    """The expression has this name, which is not a known metric."""


def value_of(expression: str, values: Mapping[str, float]) -> float:
    """The value of an expression for the metrics' `values`; NaN if it divides by zero.

    ValueError, with a sentence, if it is not such an expression, or names an unknown metric.
    """
    tree, names = _parsed(expression, values)
    try:
        return _value(tree, {short: values[name] for short, name in names.items()}, expression)
    except _UnknownName as error:
        near = _nearest(error.args[0], expression, values)
        raise _refused(expression, f"{error.args[0]} is not a metric that was scored{near}") from None
    except (ZeroDivisionError, OverflowError):
        return float("nan")
    except RecursionError:
        raise _refused(expression[:40] + "…", "it is nested too deeply") from None


def check(expression: str, metrics: Iterable[str]) -> None:
    """ValueError, with a sentence, if it is not an expression over known metrics, or has no value for any."""
    # Unequal values: a quotient of a difference has a value for some metrics, and one by 0 for none.
    if not math.isfinite(value_of(expression, {name: 1 / (3 + at) for at, name in enumerate(metrics)})):
        raise _refused(expression, "it divides by zero or is too large, whatever the metrics are")


def _parsed(expression: str, metrics: Iterable[str]) -> tuple[ast.expr, dict[str, str]]:
    """The tree of an expression in which each known name is replaced by a short one, and the names by these."""
    if len(expression) > _MOST:
        raise _refused(expression[:40] + "…", f"it has more than {_MOST:,} characters")
    # No metric is written so: where the expression has such a name, it stays unknown.
    short = {name: f"{_SHORT}{at}" for at, name in enumerate(sorted(metrics, key=len, reverse=True))}
    if _SHORT in expression:
        raise _refused(expression, f"{_SHORT} is not a metric that was scored")
    pattern = "|".join(re.escape(name) for name in short) or r"(?!)"
    text = re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda found: f" {short[found[0]]} ", expression)
    try:
        tree = expression_tree(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(expression, "it cannot be read") from None
    return tree, {one: name for name, one in short.items()}


def _value(node: ast.expr, values: Mapping[str, float], expression: str) -> float:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Name(id=name):
            raise _UnknownName(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _TWO:
            return _TWO[type(op)](_value(left, values, expression), _value(right, values, expression))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _ONE:
            return _ONE[type(op)](_value(operand, values, expression))
    raise _refused(expression, "only numbers, metrics, + - * / and brackets are allowed")


def _nearest(name: str, expression: str, metrics: Iterable[str]) -> str:
    """The known metric that may be meant, as the end of a sentence; a metric of a set has a slash."""
    names = list(metrics)
    written = re.search(rf"{re.escape(name)}/[\w-]+", expression)
    near = difflib.get_close_matches(name, names, 1)
    near = near or (difflib.get_close_matches(written[0], names, 1) if written else [])
    return f" (did you mean {near[0]}?)" if near else ""


def _refused(expression: str, why: str) -> ValueError:
    return ValueError(
        f"{expression!r} has no value: {why}; write a sum, difference, product or quotient of metrics, such as "
        "accuracy - 0.1 * loss"
    )


def why_undefined(of_class: Mapping[int, int], rows: Sequence[int], *, needs_others: bool) -> str:
    """Why there is no value, as part of a sentence; "" if there is one.

    Args:
        of_class: by class: the number of its rows.
        rows: for each of these classes, the number of rows that are of it or not.
        needs_others: whether rows of other classes are needed, too, as for the area under the ROC curve.
    """
    for (number, count), its_rows in zip(of_class.items(), rows, strict=True):
        if not count:
            return f"no row is of class {number}"
        if needs_others and count == its_rows:
            return f"all rows are of class {number}"
    return ""


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


@overload
def syntax_tree(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...


@overload
def syntax_tree(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...


def syntax_tree(source: str | bytes, mode: str = "exec") -> ast.AST:
    """The tree of a module, or with `eval` of an expression; raises what `ast.parse` raises of the source itself."""
    for _ in range(TRIES - 1):
        try:
            return ast.parse(source, mode=mode)
        except SystemError:
            continue
    return ast.parse(source, mode=mode)


def expression_tree(text: str) -> ast.expr:
    """The tree of an expression, in which names are as they are written; Python itself reads `ﬁ` as `fi`."""
    tree = syntax_tree(text, mode="eval").body
    if not text.isascii():
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = ast.get_source_segment(text, node) or node.id
    return tree
