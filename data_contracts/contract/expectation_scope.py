"""The scope of an expectation: the columns it reads, whether it judges each row alone, how it sees values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from data_contracts.arrow_types import is_text, is_time
from data_contracts.contract.exact_numbers import (
    exact_arguments,
    exact_columns,
    is_exact,
    is_for_floats,
    with_exact_literals,
)
from data_contracts.contract.frames import Layout, Nulls
from data_contracts.contract.row_condition import Condition, read_condition

# Arrow bytes of whole columns in memory at once; a single larger column is read all the same.
WHOLE_BYTES = 256 * 2**20

# They judge each row by its own values. A row-wise expectation of GX that is not named here runs on whole columns.
_ROW_WISE = {
    *(f"expect_column_values_to_{what}" for what in (
        "be_between", "be_dateutil_parseable", "be_in_set", "be_json_parseable", "be_null", "match_json_schema",
        "match_regex", "match_regex_list", "match_strftime_format", "not_be_in_set", "not_be_null", "not_match_regex",
        "not_match_regex_list",
    )),
    *(f"expect_column_value_lengths_to_{what}" for what in ("be_between", "equal")),
    *(f"expect_column_pair_values_{what}" for what in ("a_to_be_greater_than_b", "to_be_equal", "to_be_in_set")),
    "expect_multicolumn_sum_to_equal", "expect_multicolumn_values_to_be_equal",
    "expect_select_column_values_to_be_unique_within_record",
}  # fmt: skip
_NULLNESS = {"expect_column_values_to_be_null", "expect_column_values_to_not_be_null"}
_EXACT = 2**53  # float64 holds every whole number up to here
_BETWEEN = "expect_column_values_to_be_between"
_TYPES = {
    "expect_column_type_to_be", "expect_column_values_to_be_in_type_list", "expect_column_values_to_be_of_type",
}  # fmt: skip
# What pandas 1 and 2 called texts, which are `str` in pandas 3; and numbers and flags that may be missing.
_TEXTS = ("object", "O", "string", "StringDtype", "category")
_NULLABLE = re.compile("U?Int(8|16|32|64)|Float(32|64)|boolean")
# Arguments that Python's `re` searches for, or from which a library makes such a pattern.
_PATTERNS = ("regex", "regex_list", "json_schema", "strftime_format")
_READS_TEXT = ("regex", "strftime", "dateutil", "json", "value_lengths")


@dataclass(frozen=True)
class Scope:
    """The scope of one expectation.

    Attributes:
        columns: the columns it refers to, in its own order, without those of its row condition.
        absent: those, and columns of its row condition, that the data does not have; it is not run then.
        of_names: it refers to column names only and reads no rows.
        row_wise: it judges each row alone, so it may see one block after the other.
        layout: what it sees, the columns of its row condition included.
        kwargs: its arguments without the row condition, with ISO texts as times where the column holds times, and
            columns as they are called for Great Expectations.
        exact: those of them that Great Expectations would round when it reads them.
    """

    columns: list[str]
    absent: list[str]
    of_names: bool
    row_wise: bool
    layout: Layout
    kwargs: dict[str, Any]
    exact: dict[str, Any] = field(default_factory=dict)


def pattern_argument(asked: Mapping[str, Any]) -> str | None:
    """The argument of an expectation that holds patterns for Python's `re`; None without, and for a class of a user."""
    return None if "class_path" in asked else next((name for name in _PATTERNS if asked["kwargs"].get(name)), None)


def scope_of(asked: Mapping[str, Any], schema: pa.Schema) -> Scope:
    """The scope of one expectation of a suite over data of this schema; ConditionError."""
    name, condition, kwargs = asked["type"], *without_condition(asked)
    of_table = name.startswith("expect_table")
    listed = [] if of_table else kwargs.get("column_list") or []
    columns = [*(kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs), *listed]
    of_names = name == "expect_column_to_exist" or name.startswith("expect_table_column")
    named = columns if condition is None else [*columns, *condition.columns]
    absent = [] if of_names else [column for column in named if schema.get_field_index(column) < 0]
    row_wise = name in _ROW_WISE
    places = sorted({schema.get_field_index(name) for name in named} - {-1})  # the data's order
    reads = () if of_names else tuple(schema.field(place).name for place in places)
    single = columns[0] if len(columns) == 1 and not of_names and not absent else None
    text = single if any(part in name for part in _READS_TEXT) else None
    if not text and not absent:
        kwargs = _with_times(kwargs, [schema.field(one).type for one in columns] if reads else [])
    if single and name in _TYPES:
        kwargs |= {
            key: _as_read(kwargs[key], schema.field(single).type) for key in ("type_", "type_list") if key in kwargs
        }
    nulls = _nulls(name, row_wise and single is not None, condition is not None)
    given = {column: f"c{at}" for at, column in enumerate(dict.fromkeys(columns))} if reads else {}
    tested = exact_columns(given.keys() & set(reads), schema) if nulls != "typed" else set()
    exact, condition = exact_in_condition(tested, condition, reads, schema)
    floats = sorted(tested) if is_for_floats(name) else ()
    layout = Layout(reads, nulls, text, condition, exact, tuple(floats), tuple(given.items()), name == _BETWEEN)
    return Scope(
        columns, absent, of_names, row_wise, layout, _renamed(kwargs, given), _as_written(name, kwargs, tested)
    )


def exact_in_condition(
    tested: Collection[str], condition: Condition | None, reads: Sequence[str], schema: pa.Schema
) -> tuple[tuple[str, ...], Condition | None]:
    """The columns to show as decimals, and the condition as it is compared with them."""
    of_condition = () if condition is None else condition.columns
    exact = {*tested, *(name for name in of_condition if name in reads and is_exact(schema.field(name).type))}
    if condition is not None:
        condition = replace(condition, tree=with_exact_literals(condition.tree, exact))
    return tuple(sorted(exact)), condition


def _renamed(kwargs: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Arguments in which the columns are called so."""
    named = {key: given.get(kwargs[key], kwargs[key]) for key in ("column", "column_A", "column_B") if key in kwargs}
    if kwargs.get("column_list"):
        named["column_list"] = [given.get(one, one) for one in kwargs["column_list"]]
    return {**kwargs, **named}


def _as_written(name: str, kwargs: dict[str, Any], exact: Collection[str]) -> dict[str, Any]:
    """Arguments as a suite writes them, where Great Expectations would round them to float64."""
    if exact:
        return exact_arguments(name, kwargs)
    bounds = {key: kwargs.get(key) for key in ("min_value", "max_value")}
    return {key: value for key, value in bounds.items() if type(value) is int and abs(value) > _EXACT}


def _as_read(named: Any, kind: pa.DataType) -> Any:
    """A type's name in an argument, or a list of them, as pandas calls a column of this type when it is read here."""
    if isinstance(named, list):
        return [_as_read(name, kind) for name in named]
    if is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
        return "str" if named in _TEXTS else named
    missing_allowed = isinstance(named, str) and _NULLABLE.fullmatch(named)
    return named.lower().replace("boolean", "bool") if missing_allowed else named


def without_condition(asked: Mapping[str, Any]) -> tuple[Condition | None, dict[str, Any]]:
    """An expectation's row condition, and the arguments that Great Expectations gets; ConditionError."""
    kwargs = {key: value for key, value in asked["kwargs"].items() if key != "row_condition"}
    return read_condition(asked["kwargs"].get("row_condition")), kwargs


def packed(layouts: Sequence[Layout], rows: int, schema: pa.Schema) -> Iterator[list[Layout]]:
    """Layouts in groups whose columns take about WHOLE_BYTES together, so that few passes over the files are made."""
    run: list[Layout] = []
    held: dict[str, int] = {}
    for layout in layouts:
        sizes = {name: rows * _width(schema.field(name).type) for name in layout.columns}
        if run and sum({**held, **sizes}.values()) > WHOLE_BYTES:
            yield run
            run, held = [], {}
        run.append(layout)
        held.update(sizes)
    if run:
        yield run


def narrowest(schema: pa.Schema) -> str:
    """The column to read when rows are only counted."""
    return min(schema.names, key=lambda name: _width(schema.field(name).type))


def _nulls(name: str, one_by_one: bool, conditional: bool) -> Nulls:
    if name in _TYPES:
        return "typed"
    if not one_by_one:
        return "nan"
    return "masked" if conditional or name in _NULLNESS else "drop"


def _width(kind: pa.DataType) -> int:
    try:
        return max(kind.bit_width // 8, 1)
    except ValueError:
        return 32  # a guess for text, good enough to estimate the number of passes


def _with_times(kwargs: Mapping[str, Any], kinds: Sequence[pa.DataType]) -> dict[str, Any]:
    """Arguments with ISO texts as times, where the columns, of these types, hold times.

    Great Expectations itself would compare a time with a date or a text and raise.
    """
    named: dict[str, Any] = {}
    if len(kinds) == 1:
        named = {
            key: _as_time(kwargs[key], kinds[0]) for key in ("min_value", "max_value", "value_set") if key in kwargs
        }
    elif isinstance(pairs := kwargs.get("value_pairs_set"), list) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in pairs
    ):
        named["value_pairs_set"] = [list(map(_as_time, pair, kinds)) for pair in pairs]
    return {**kwargs, **named}


def _as_time(value: Any, kind: pa.DataType) -> Any:
    import pandas as pd

    if isinstance(value, list):
        return [_as_time(one, kind) for one in value]
    if not isinstance(value, str) or not is_time(kind):
        return value
    zoned = getattr(kind, "tz", None) is not None
    try:
        exact = pd.Timestamp(value)
        moment: datetime = exact if exact.nanosecond else exact.to_pydatetime()
    except ValueError:
        return value  # GX reports what is wrong with it
    if zoned and moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment if zoned or moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
