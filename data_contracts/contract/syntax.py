"""Finds faults in an argument of a suite, whatever the data is: in a name, a regular expression, a bound, a condition.

It reports only what Great Expectations would certainly refuse.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeGuard

from data_contracts.expressions.syntax_trees import syntax_tree

# Names that pandas' expressions define (pandas.core.computation.scope): they hide columns of these names.
OF_PANDAS = {"Inf", "Timestamp", "datetime", "inf", "list", "tuple", "index"}

# Of pandas' quantiles.
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def wrong_argument(kind: str, kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """The argument of an expectation of this type that cannot be read, and why; None if there is none."""
    for name in ("column", "column_A", "column_B"):
        if name in kwargs and not _may_be_name(kwargs[name]):
            return name, f"{kwargs[name]!r} is not the name of a column; write it in quotes."
    listed = kwargs.get("column_list", [])
    if not _is_parameter(listed) and not (isinstance(listed, list) and all(map(_may_be_name, listed))):
        return "column_list", f"{listed!r} is not a list of columns' names."
    for name in ("regex", "regex_list"):
        given = kwargs.get(name)
        for regex in given if isinstance(given, list) else [given]:
            if isinstance(regex, str) and (reason := _why_no_regex(regex)):
                return name, f"{regex!r} is not a regular expression: {reason}."
    if wrong := _wrong_bounds(kind, kwargs):
        return wrong
    condition = kwargs.get("row_condition")
    reason = _why_no_condition(condition, kwargs.get("condition_parser"))
    return ("row_condition", f"{condition!r} is not a condition that pandas can read: {reason}.") if reason else None


def _wrong_bounds(kind: str, kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """The bounds or quantiles that pandas or Great Expectations refuses when it measures, as `wrong_argument`."""
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    if kind == "expect_column_values_to_be_between" and _is_number(low) and _is_number(high) and low > high:
        return "min_value", f"{low!r} is greater than max_value, {high!r}."
    if kind != "expect_column_quantile_values_to_be_between":
        return None
    ranges, interpolation = kwargs.get("quantile_ranges"), kwargs.get("allow_relative_error")
    asked, bounds = (ranges.get(name) if isinstance(ranges, dict) else None for name in ("quantiles", "value_ranges"))
    for quantile in asked if isinstance(asked, list) else []:
        if _is_number(quantile) and not 0 <= quantile <= 1:
            return "quantile_ranges", f"{quantile!r} is not a quantile; write a number from 0 to 1."
    # Great Expectations refuses these only in Python; of a JSON suite it would leave out the last quantiles.
    if isinstance(asked, list) and isinstance(bounds, list) and len(asked) != len(bounds):
        return "quantile_ranges", f"quantiles and value_ranges differ in number: {len(asked)} and {len(bounds)}."
    if interpolation and not _is_parameter(interpolation) and interpolation not in INTERPOLATIONS:
        return "allow_relative_error", f"{interpolation!r} is not one of {', '.join(INTERPOLATIONS)}."
    return None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _may_be_name(value: Any) -> bool:
    return isinstance(value, str) or _is_parameter(value)


def _is_parameter(value: Any) -> bool:
    """Whether it stands for a value that is not known yet, as when a suite is explained without its spec."""
    return isinstance(value, dict) and "$PARAMETER" in value


def unknown_columns(condition: Any, parser: Any, present: Collection[str]) -> list[str]:
    """The names in a `row_condition` that are no columns of the data, and that nothing else can mean."""
    if isinstance(condition, str):
        parsed = _module(condition) if parser in (None, "pandas") else None
        nodes = [] if parsed is None else list(ast.walk(parsed))
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        named = [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
        return [one for one in named if one not in present and one not in OF_PANDAS and "level_" not in one]
    return [one for one in _names(condition) if one not in present]


def _why_no_condition(condition: Any, parser: Any) -> str:
    """Why pandas refuses a condition; "" if it may accept it."""
    if not isinstance(condition, str) or not condition or parser not in (None, "pandas"):
        return ""
    try:
        parsed = _module(condition)
    except SyntaxError as error:
        return error.msg
    assigns = parsed is not None and any(isinstance(node, ast.Assign) for node in parsed.body)
    return "it assigns a value; write == to compare" if assigns else ""


def _module(text: str) -> ast.Module | None:
    """What pandas parses; None if its own signs are in the text, or Python's parser cannot hold it."""
    if "`" in text or "@" in text:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return syntax_tree(text.strip().replace("&", " and ").replace("|", " or "))
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError):
        return None


def _names(tree: Any) -> Iterator[str]:
    """The columns that the JSON of a condition names."""
    if isinstance(tree, dict):
        column = tree.get("column")
        if isinstance(column, dict) and isinstance(column.get("name"), str):
            yield column["name"]
        for one in tree.get("conditions") or []:
            yield from _names(one)


def _why_no_regex(regex: str) -> str:
    """Why neither engine that Great Expectations may use reads a regular expression: Python's and pyarrow's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            pc.match_substring_regex(pa.array([""]), regex)
        except pa.ArrowInvalid:
            return str(error)
    return ""
