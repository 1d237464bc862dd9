"""An expression over metrics, such as `accuracy - 0.1 * hard/loss`: + - * / of numbers and names, and brackets.

A metric of a set is written as everywhere, `<set>/<metric>`: where such a name is known, its slash does not divide.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping

from data_contracts.expressions.syntax_trees import expression_tree

_TWO: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_ONE: dict[type, Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_MOST = 1_000
_SHORT = "__metric_"


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


def check(expression: str, known: Iterable[str]) -> None:
    """ValueError, with a sentence, if it is not an expression over known metrics, or has no value for any."""
    # Unequal values: a quotient of a difference has a value for some metrics, and one by 0 for none.
    if not math.isfinite(value_of(expression, {name: 1 / (3 + at) for at, name in enumerate(known)})):
        raise _refused(expression, "it divides by zero or is too large, whatever the metrics are")


def _parsed(expression: str, known: Iterable[str]) -> tuple[ast.expr, dict[str, str]]:
    """The tree of an expression in which each known name is replaced by a short one, and the names by these."""
    if len(expression) > _MOST:
        raise _refused(expression[:40] + "…", f"it has more than {_MOST:,} characters")
    # No metric is written so: where the expression has such a name, it stays unknown.
    short = {name: f"{_SHORT}{at}" for at, name in enumerate(sorted(known, key=len, reverse=True))}
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


def _nearest(name: str, expression: str, known: Iterable[str]) -> str:
    """The known metric that may be meant, as the end of a sentence; a metric of a set has a slash."""
    names = list(known)
    written = re.search(rf"{re.escape(name)}/[\w-]+", expression)
    near = difflib.get_close_matches(name, names, 1)
    near = near or (difflib.get_close_matches(written[0], names, 1) if written else [])
    return f" (did you mean {near[0]}?)" if near else ""


def _refused(expression: str, why: str) -> ValueError:
    return ValueError(
        f"{expression!r} has no value: {why}; write a sum, difference, product or quotient of metrics, such as "
        "accuracy - 0.1 * loss"
    )
