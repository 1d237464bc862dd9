"""What Great Expectations gets of the data for an expectation: which columns, as which pandas frames, how exactly.

A row must look the same in every batch. So a column's pandas type follows from its Arrow type and never from the other
rows of a batch, and no whole number is rounded.

Numbers that float64 does not hold, decimals and uint64, are Python's decimals. A number of a suite means what is
written there: for a decimal column, 0.1 is a tenth, not the float64 beside it. All is computed without rounding; only a
mean or a standard deviation has no end, and is cut off where no bound can lie.

The scope of an expectation says which columns it reads, whether it judges each row alone, and how it sees values.
"""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation, localcontext
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import first_misfit, is_text, is_time
from data_contracts.contract.suites import COMPARE, Condition, Tree, read_condition
from data_contracts.handoffs import Expectation

if TYPE_CHECKING:
    import pandas as pd


# Digits enough for sums of squares of the longest decimals; what is not a number compares as false.
CONTEXT = Context(prec=240, Emin=-999_999, Emax=999_999, traps=[])
MISSING = Decimal("NaN")
# Decimals of so many digits differ as float64, and are equal to the same numbers of a suite.
FLOAT_DIGITS = 15
# Arguments that are compared with values.
_COMPARED = ("min_value", "max_value", "value_set", "value_pairs_set", "sum_total")
# They compare other numbers with their arguments, such as counts.
_OF_COUNTS = ("unique_value_count", "proportion_of", "value_lengths")
# They compute what has no exact value, or compare with a tolerance.
_OF_FLOATS = ("z_scores", "outliers", "quantile", "divergence", "_p_value_", "cramers_phi")
# For each expectation, a frame of this size costs GX some tens of milliseconds of work and as much in overhead.
BLOCK_BYTES = 64 * 2**20
BLOCK_ROWS = 2**20
_EXACT = 2**53  # the largest range of whole numbers that float64 holds exactly
_NULLABLE = {
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.bool_(): "Boolean",
}
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
_BETWEEN = "expect_column_values_to_be_between"
_TYPES = {
    "expect_column_type_to_be", "expect_column_values_to_be_in_type_list", "expect_column_values_to_be_of_type",
}  # fmt: skip
# What pandas 1 and 2 called texts, which are `str` in pandas 3; and numbers and flags that may be missing.
_TEXTS = ("object", "O", "string", "StringDtype", "category")
_NULLABLE_TYPES = re.compile("U?Int(8|16|32|64)|Float(32|64)|boolean")
# Arguments that Python's `re` searches for, or from which a library makes such a pattern.
_PATTERNS = ("regex", "regex_list", "json_schema", "strftime_format")
_READS_TEXT = ("regex", "strftime", "dateutil", "json", "value_lengths")


def is_exact(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers that float64 does not."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_decimal(kind) or kind == pa.uint64()


def is_for_floats(expectation: str) -> bool:
    """Whether an expectation is measured in float64, whatever the numbers are."""
    return any(part in expectation for part in _OF_FLOATS)


def exact_columns(columns: Collection[str], schema: pa.Schema) -> set[str]:
    """Those of the columns that are shown as decimals: of exact numbers, and of all numbers that stand beside these."""
    kinds = {name: schema.field(name).type for name in columns}
    exact = {name for name, kind in kinds.items() if is_exact(kind)}
    if not exact:
        return exact
    return exact | {name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)}


def exact_arguments(expectation: str, kwargs: Mapping[str, Any]) -> dict[str, object]:
    """The arguments that are compared with exact numbers, as they are written."""
    if is_for_floats(expectation) or any(part in expectation for part in _OF_COUNTS):
        return {}
    return {
        name: as_written(kwargs[name], texts=name != "value_pairs_set")  # a text may be of the other column
        for name in _COMPARED
        if kwargs.get(name) is not None
    }


def as_written(value: Any, texts: bool = True) -> Any:
    """A number as the decimal that its text is, at any depth of lists; also a text that is one. Else the value."""
    if isinstance(value, list | tuple):
        return [as_written(part, texts) for part in value]
    if isinstance(value, bool) or not isinstance(value, (int, float, str) if texts else (int, float)):
        return value
    try:
        return Decimal(value if isinstance(value, int) else str(value))
    except InvalidOperation:
        return value


def decimals_of(column: pa.ChunkedArray) -> list[Decimal]:
    """The numbers of a column as decimals, or MISSING."""
    return [MISSING if value is None or value != value else Decimal(str(value)) for value in column.to_pylist()]


def with_exact_literals(tree: Tree, exact: Collection[str]) -> Tree:
    """A row condition's tree in which what is compared with these columns is as it is written."""
    if "conditions" in tree:
        return {**tree, "conditions": [with_exact_literals(part, exact) for part in tree["conditions"]]}
    if "parameter" not in tree or tree["column"]["name"] not in exact:
        return tree
    return {**tree, "parameter": as_written(tree["parameter"])}


def _mean(values: Sequence[Decimal]) -> Decimal | None:
    return sum(values) / Decimal(len(values)) if values else None


def _deviation(values: Sequence[Decimal]) -> Decimal | None:
    count = Decimal(len(values))
    if count < 2:
        return None
    squares = count * sum(value * value for value in values) - sum(values) ** 2
    return (squares / (count * (count - 1))).sqrt()


# Great Expectations computes these in float64, and of other rows where some values are missing.
AGGREGATES: dict[str, Callable[[Sequence[Decimal]], Decimal | int | None]] = {
    "column.mean": _mean,
    "column.median": lambda values: statistics.median(values) if values else None,
    "column.standard_deviation": _deviation,
    "column.sum": sum,
}


def aggregate(metric: str, values: Sequence[Decimal]) -> Decimal | int | None:
    """The exact value of one of AGGREGATES over values that are all there."""
    with localcontext(CONTEXT):
        return AGGREGATES[metric](values)


# How nulls are shown: `drop` leaves their rows out, for one column; GX checks only the other rows anyway. `masked`
# keeps whole numbers and booleans beside nulls in pandas' nullable types. `nan` uses float64 where it is exact, else
# Python's integers beside NaN. `typed` is for expectations about the type: the column's own, with or without nulls.
Nulls = Literal["drop", "masked", "nan", "typed"]


class UnheldTime(ValueError):
    """A time lies outside of the years that pandas can hold; the text names its row."""


class Layout(NamedTuple):
    """What an expectation needs to see.

    Attributes:
        columns: those that are read.
        nulls: how missing values are shown.
        text: the column that it reads as text.
        condition: which rows it sees; None: all.
        exact: the columns whose numbers are shown as Python's decimals while the rows are chosen.
        floats: those of them that it sees as float64.
        given: the columns that it sees, each with the name that it has for Great Expectations.
        nanoseconds: whether it is faster on times in nanoseconds; these hold no time of a suite beyond the year 2262.
    """

    columns: tuple[str, ...]
    nulls: Nulls
    text: str | None = None
    condition: Condition | None = None
    exact: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    nanoseconds: bool = False


def blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Batches joined or cut into blocks of at most BLOCK_ROWS rows and about BLOCK_BYTES, each with its first row's
    number.
    """
    waiting: list[pa.RecordBatch] = []
    first = rows = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BLOCK_ROWS):
            piece = batch.slice(start, BLOCK_ROWS)
            if waiting and (rows + piece.num_rows > BLOCK_ROWS or size + piece.nbytes > BLOCK_BYTES):
                yield first, pa.Table.from_batches(waiting)
                first, waiting, rows, size = first + rows, [], 0, 0
            waiting.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if waiting:
        yield first, pa.Table.from_batches(waiting)


def frame(table: pa.Table, layout: Layout, first: int = 0) -> pd.DataFrame:
    """The frame for an expectation, indexed by row number.

    Args:
        table: rows `first`, `first + 1`, … of the data, with at least the layout's columns.

    Raises: UnheldTime
    """
    import pandas as pd

    columns = {name: table.column(name) for name in layout.columns}
    index: NDArray[np.int64] | pd.RangeIndex = pd.RangeIndex(first, first + table.num_rows)
    if layout.nulls == "drop" or (layout.nulls == "typed" and len(columns) == 1):
        (name,) = layout.columns
        if columns[name].null_count:
            index = np.flatnonzero(columns[name].is_valid().to_numpy()) + first
            columns[name] = columns[name].drop_null()
    series = {}
    for name, column in columns.items():
        if name in layout.exact:
            series[name] = pd.Series(decimals_of(column), dtype=object)
            continue
        show = partial(_series, layout=layout, as_text=name == layout.text)
        try:
            series[name] = show(column)
        except ValueError as error:
            if not is_time(column.type):
                raise
            raise UnheldTime(f"pandas cannot hold the time in row {index[first_misfit(column, show)]}") from error
    shown = pd.DataFrame(series, copy=False) if series else pd.DataFrame(index=index)
    shown.index = pd.Index(index)
    return shown


def seen(rows: pd.DataFrame, layout: Layout) -> pd.DataFrame:
    """The frame that Great Expectations gets for the rows that meet a condition: its columns under the names for it.

    It is indexed from 0, because Great Expectations aligns by labels what it selects by position. Its names are unlike
    in every way, because it takes names for one that differ only in case.
    """
    import pandas as pd

    names = dict(layout.given)
    shown = rows[list(names)]
    shown = shown.astype(dict.fromkeys(layout.floats, "float64")) if layout.floats else shown
    return shown.set_axis(pd.RangeIndex(len(rows))).set_axis(list(names.values()), axis="columns")


def most_common(column: pd.Series) -> list[Any]:
    """The values that are as frequent as any; times as Python has them, which GX gives without a zone."""
    values = column.mode()
    if values.dtype.kind != "M":
        return list(values.values)
    in_python = values.dt.year.between(1, 9999)
    return [*values[in_python].tolist(), *values[~in_python].astype(str)]


def without_values(schema: pa.Schema, rows: int, of_names: bool) -> pd.DataFrame:
    """The frame for an expectation about the names of columns, without rows; or about the number of rows, without
    columns.
    """
    import pandas as pd  # 0.3 s, so only where a frame is needed

    return pd.DataFrame(columns=schema.names) if of_names else pd.DataFrame(index=pd.RangeIndex(rows))


def _series(column: pa.ChunkedArray, layout: Layout, as_text: bool) -> pd.Series:
    import pandas as pd

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)  # categories differ from batch to batch, values do not
    kind = column.type
    if layout.nulls == "typed":
        return _plainly(column)
    if is_time(kind):
        # pandas prints an array of only midnights in a shorter form than one with another time; Arrow converts row by
        # row.
        return column.cast(pa.string()).to_pandas() if as_text else _time(column, layout.nanoseconds).to_pandas()
    if pa.types.is_integer(kind) and kind != pa.uint64():
        column = column.cast(pa.int64())  # GX compares other widths value by value, a hundred times slower
    if not column.null_count or not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return _plainly(column)
    if layout.nulls == "masked":
        return column.to_pandas(types_mapper=_nullable)
    if pa.types.is_boolean(kind) or _fits_float(column):
        return column.to_pandas()
    return pd.Series([float("nan") if value is None else value for value in column.to_pylist()], dtype=object)


def _plainly(column: pa.ChunkedArray) -> pd.Series:
    """As pandas holds the column; Python's objects for types that Arrow cannot hand over, such as lists of UUIDs."""
    import pandas as pd

    try:
        return column.to_pandas()
    except pa.ArrowNotImplementedError:
        return pd.Series(column.to_pylist(), dtype=object)


def _time(column: pa.ChunkedArray, nanoseconds: bool) -> pa.ChunkedArray:
    """Times in microseconds, or in nanoseconds, which GX compares as arrays, if no year lies outside 1677 to 2262.

    Times that lie 292 years apart are in microseconds, if no digit is lost: pandas could not hold their difference.
    """
    zone = "UTC" if getattr(column.type, "tz", None) else None  # elsewhere, it may be another year than 1 to 9999
    micros, nanos = pa.timestamp("us", zone), pa.timestamp("ns", zone)
    try:
        shown = column.cast(nanos if nanoseconds else micros)
    except pa.ArrowInvalid:
        return column.cast(micros if nanoseconds else nanos)
    if shown.type == nanos:
        span = pc.min_max(shown.cast(pa.int64())).as_py()
        if span["min"] is not None and span["max"] - span["min"] >= 2**63:
            with suppress(pa.ArrowInvalid):
                return column.cast(micros)
    return shown


def _fits_float(column: pa.ChunkedArray) -> bool:
    span = pc.min_max(column).as_py()
    return span["min"] is None or (span["min"] >= -_EXACT and span["max"] <= _EXACT)


def _nullable(kind: pa.DataType) -> object:
    """The pandas type for whole numbers and booleans beside nulls; None: pandas chooses."""
    import pandas as pd

    return getattr(pd, f"{_NULLABLE[kind]}Dtype")() if kind in _NULLABLE else None


def rows_that_meet(condition: Condition, rows: pd.DataFrame) -> pd.DataFrame:
    """Those of the rows for which a condition is true, with their numbers; raises what pandas raises of their types."""
    return rows.loc[_mask(condition.tree, rows)]


def _mask(tree: Tree, rows: pd.DataFrame) -> Any:
    import pandas as pd

    if "conditions" in tree:
        parts = [_mask(part, rows) for part in tree["conditions"]]
        if tree["type"] == "not":
            return ~parts[0]
        return reduce(operator.and_ if tree["type"] == "and" else operator.or_, parts)
    column = rows[tree["column"]["name"]]
    if tree["type"] == "nullity":
        return column.isnull() if tree["is_null"] else column.notnull()
    sign, value = tree["operator"], tree["parameter"]
    is_time = pd.api.types.is_datetime64_any_dtype(column)
    if sign not in COMPARE:
        if is_time:  # `isin` would find no text, and cannot read a time beyond the column's unit
            among = reduce(operator.or_, [column == _moment(one) for one in value], column.isna() & column.notna())
        else:
            among = column.isin(value)
        return among if sign == "IN" else ~among
    if isinstance(value, dict):
        column, value = _alike(column, rows[value["column"]])
    elif is_time:
        value = _moment(value)
    with localcontext(CONTEXT):
        return COMPARE[sign](column, value)


def _moment(value: Any) -> Any:
    """A text as a time; ValueError for one that is none, which would equal none."""
    import pandas as pd

    if not isinstance(value, str):
        return value
    moment = pd.Timestamp(value)
    return moment if moment.tz is None else moment.tz_convert("UTC")


def _alike(*columns: Any) -> list[Any]:
    """Two columns that are compared; floats beside decimals are as they are written."""
    if {"O", "f"} != {column.dtype.kind for column in columns}:
        return list(columns)
    return [column.map(as_written) if column.dtype.kind == "f" else column for column in columns]


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
    kwargs: Mapping[str, Any]
    exact: Mapping[str, object] = field(default_factory=dict)


def pattern_argument(entry: Expectation) -> str | None:
    """The argument of an expectation that holds patterns for Python's `re`; None without, and for a class of a user."""
    return None if "class_path" in entry else next((name for name in _PATTERNS if entry["kwargs"].get(name)), None)


def scope_of(entry: Expectation, schema: pa.Schema) -> Scope:
    """The scope of one expectation of a suite over data of this schema; ConditionError."""
    name, condition, kwargs = entry["type"], *without_condition(entry)
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


def _renamed(kwargs: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, object]:
    """Arguments in which the columns are called so."""
    named = {key: given.get(kwargs[key], kwargs[key]) for key in ("column", "column_A", "column_B") if key in kwargs}
    if kwargs.get("column_list"):
        named["column_list"] = [given.get(one, one) for one in kwargs["column_list"]]
    return {**kwargs, **named}


def _as_written(name: str, kwargs: Mapping[str, Any], exact: Collection[str]) -> dict[str, object]:
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
    missing_allowed = isinstance(named, str) and _NULLABLE_TYPES.fullmatch(named)
    return named.lower().replace("boolean", "bool") if missing_allowed else named


def without_condition(entry: Expectation) -> tuple[Condition | None, dict[str, Any]]:
    """An expectation's row condition, and the arguments that Great Expectations gets; ConditionError."""
    kwargs = {key: value for key, value in entry["kwargs"].items() if key != "row_condition"}
    return read_condition(entry["kwargs"].get("row_condition")), kwargs


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


def _with_times(kwargs: Mapping[str, Any], kinds: Sequence[pa.DataType]) -> dict[str, object]:
    """Arguments with ISO texts as times, where the columns, of these types, hold times.

    Great Expectations itself would compare a time with a date or a text and raise.
    """
    named: dict[str, object] = {}
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
