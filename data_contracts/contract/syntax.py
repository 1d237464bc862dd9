"""Finds faults in an argument of a suite, whatever the data is: in a name, a regular expression, a bound, a condition.

It reports what Great Expectations would certainly refuse, and texts that it would carry out as a program.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from data_contracts.contract.row_condition import ConditionError, read_condition

# What Spark and databases call types, none of which a column has in pandas.
_FOREIGN_TYPE = re.compile(r"[A-Z]\w*Type|[A-Z][A-Z_0-9 ]+(\(.*\))?")
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
    for name in ("type_", "type_list"):
        types = kwargs.get(name) or ["str"]
        types = types if isinstance(types, list) else [types]
        if all(isinstance(one, str) and _FOREIGN_TYPE.fullmatch(one) for one in types):
            return name, (
                f"{', '.join(types)}: no type of pandas, as which rows are read here; use str, int64, float64, bool, "
                "datetime64[us] or date."
            )
    if wrong := _wrong_bounds(kind, kwargs):
        return wrong
    try:
        local_schema(kwargs.get("json_schema"))
    except ForeignReference as error:
        return "json_schema", f"{error}."
    return ("row_condition", reason) if (reason := wrong_condition(kwargs)) else None


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


def wrong_condition(kwargs: Mapping[str, Any]) -> str:
    """Why an expectation's `row_condition` cannot be read; "" if it can."""
    condition = kwargs.get("row_condition")
    if any(parameter_names(condition)):
        return ""
    try:
        read_condition(condition)
    except ConditionError as error:
        return f"{condition!r} is not a condition on rows: {error}; docs/validate.md lists what is."
    return ""


def parameter_names(value: Any) -> Iterator[str]:
    """The suite parameters that an argument names, at any depth."""
    if isinstance(value, dict) and "$PARAMETER" in value:
        yield str(value["$PARAMETER"])
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from parameter_names(part)


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


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# As drafts before and since 6 write it. A reference within a part that names itself leads to that name.
_NAMES = ("$id", "id")


class ForeignReference(ValueError):
    """A part of a JSON Schema leads, or could lead, out of it; the message names the part."""


def local_schema(schema: Any) -> Any:
    """A suite's JSON Schema without the name that it gives itself, so that references are looked up in it alone.

    The library that Great Expectations uses fetches the address to which a `$ref` leads.

    Raises:
        ForeignReference: a reference does not begin with #, or a part of the schema has a name of its own.
    """
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        for key, value in part.items():
            if key in _REFERENCES and not (isinstance(value, dict) or str(value).startswith("#")):
                raise ForeignReference(f"its {key} {value!r} leads out of the schema; write the part under $defs")
            if key in _NAMES and isinstance(value, str) and part is not schema:
                raise ForeignReference(f"a part of it has the {key} {value!r}; leave that out")
            parts.append(value)
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if not (key in _NAMES and isinstance(value, str))}
