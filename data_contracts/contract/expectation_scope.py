"""The scope of an expectation: the columns it reads, whether it judges each row alone, how it sees values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pyarrow as pa

from data_contracts.arrow_types import is_time
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
_TYPES = {
    "expect_column_type_to_be", "expect_column_values_to_be_in_type_list", "expect_column_values_to_be_of_type",
}  # fmt: skip
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
        kwargs: its arguments without the row condition, with ISO texts as times where the column holds times.
    """

    columns: list[str]
    absent: list[str]
    of_names: bool
    row_wise: bool
    layout: Layout
    kwargs: dict[str, Any]


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
    if single and not text and is_time(schema.field(single).type):
        kwargs = _with_times(kwargs, zoned=getattr(schema.field(single).type, "tz", None) is not None)
    layout = Layout(reads, _nulls(name, row_wise and single is not None, condition is not None), text, condition)
    return Scope(columns, absent, of_names, row_wise, layout, kwargs)


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


def _with_times(kwargs: Mapping[str, Any], zoned: bool) -> dict[str, Any]:
    """Arguments with ISO texts as times: GX itself would compare a time with a date or a text and raise."""
    named = {key: value for key, value in kwargs.items() if key in ("min_value", "max_value", "value_set")}
    return {**kwargs, **{key: _as_time(value, zoned) for key, value in named.items()}}


def _as_time(value: Any, zoned: bool) -> Any:
    import pandas as pd

    if isinstance(value, list):
        return [_as_time(one, zoned) for one in value]
    if not isinstance(value, str):
        return value
    try:
        moment = pd.Timestamp(value).to_pydatetime(warn=False)
    except ValueError:
        return value  # GX reports what is wrong with it
    if zoned and moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment if zoned or moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
