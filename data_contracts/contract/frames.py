"""Turns Arrow batches into the pandas frames that Great Expectations reads.

A row must look the same in every batch. So a column's pandas type follows from its Arrow type and never from the other
rows of a batch, and no whole number is rounded.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import localcontext
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_types import first_misfit, is_time
from data_contracts.contract.exact_numbers import CONTEXT, as_written, decimals_of
from data_contracts.contract.row_condition import COMPARE, Condition, Tree

if TYPE_CHECKING:
    import pandas as pd

# For each expectation, a frame of this size costs GX some tens of milliseconds of work and as much in overhead.
BLOCK_BYTES = 64 * 2**20
BLOCK_ROWS = 2**20
_EXACT = 2**53  # the largest range of whole numbers that float64 holds exactly

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


def names_only(schema: pa.Schema) -> pd.DataFrame:
    """The frame for an expectation about the names of columns: without rows."""
    import pandas as pd  # 0.3 s, so only where a frame is needed

    return pd.DataFrame(columns=schema.names)


def rows_only(rows: int) -> pd.DataFrame:
    """The frame for an expectation about the number of rows: without columns."""
    import pandas as pd

    return pd.DataFrame(index=pd.RangeIndex(rows))


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
