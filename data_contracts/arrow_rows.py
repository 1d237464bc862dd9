"""Rows as Arrow holds them: what columns hold, the data that is checked, row numbers, and rows that meet a condition.

The data that is checked comes as Arrow batches, and as open Parquet files where that is what it is. Where some rows are
left out, row numbers say which rows stay, and what number a row that stays had before.

The rows that meet a condition (`data_contracts.expressions`) are found a block at a time. As in SQL, a comparison with
a missing value or with NaN is neither true nor false; `not` leaves it so, and a row whose condition is not true does
not meet it. Arithmetic is in double precision; whole numbers alone are compared exactly.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_contracts.expressions import Condition, column_of, is_missing

DAY_NS = 86_400 * 10**9
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_MOST = 2**63 - 1
_COMPARED = {
    ast.Eq: pc.equal, ast.NotEq: pc.not_equal, ast.Lt: pc.less, ast.LtE: pc.less_equal, ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}  # fmt: skip
_ARITHMETIC = {ast.Add: pc.add, ast.Sub: pc.subtract, ast.Mult: pc.multiply, ast.Div: pc.divide}
_WHAT = {"number": "numbers", "text": "texts", "flag": "true or false", "time": "times"}
_TAKES = "numbers, texts, true or false, and times"


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def decoded(values: pa.Array) -> pa.Array:
    """The same values in a plain type; those of views as large texts or bytes, those of an extension type as stored.

    A null in a dictionary is a null. A narrow decimal becomes decimal128, for which Arrow has all functions.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return decoded(values.storage)
    if pa.types.is_dictionary(kind):
        return decoded(values.dictionary).take(values.indices)
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return values.cast(pa.decimal128(kind.precision, kind.scale))
    return values


def decoded_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """`decoded` of each chunk; the chunks may have different dictionaries."""
    return pa.chunked_array([decoded(chunk) for chunk in column.chunks] or [decoded(pa.nulls(0, column.type))])


def is_time(kind: pa.DataType) -> bool:
    """Whether a column of this type holds dates or points in time."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def counts(times: pa.Array | pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, int]:
    """Dates or times as whole numbers since 1970 (UTC), and the nanoseconds of their unit."""
    kind = times.type
    if pa.types.is_date32(kind):
        return times.cast(pa.int32()).cast(pa.int64()), DAY_NS
    return times.cast(pa.int64()), _UNIT_NS["ms" if pa.types.is_date64(kind) else kind.unit]


def microseconds(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Dates or times in microseconds since 1970 (UTC), as int64, rounded down.

    What int64 cannot hold, from the year 294,247 on, is the last time: an infinite date stays the last.
    """
    numbers, unit_ns = counts(times)
    if unit_ns == 1:
        floor = numbers.fill_null(0).to_numpy(zero_copy_only=False) // 1000
        return pa.array(floor, mask=np.asarray(numbers.is_null().to_numpy(zero_copy_only=False)))
    factor = unit_ns // 1000
    ends = pa.scalar(_MOST // factor, pa.int64()), pa.scalar(-(_MOST // factor), pa.int64())
    within = pc.max_element_wise(pc.min_element_wise(numbers, ends[0], skip_nulls=False), ends[1], skip_nulls=False)
    return pc.multiply(within, pa.scalar(factor, pa.int64()))


def before(times: pa.Array, edge_us: int) -> pa.Array:
    """Whether each time is before an edge, unrounded, wherever the edge lies; null where there is no time."""
    numbers, unit_ns = counts(times)
    edge = -(-edge_us * 1000 // unit_ns)  # rounded up: only whole numbers are compared with it
    if edge > _MOST:
        return pc.greater_equal(numbers, -_MOST - 1)
    return pc.less(numbers, pa.scalar(max(edge, -_MOST - 1), pa.int64()))


def first_misfit(values: pa.Array | pa.ChunkedArray, convert: Callable[[pa.Array], object]) -> int:
    """Index of the first of some values, at least one of which cannot be converted (ValueError).

    Uses bisection: a cast that fails is slow and does not say where it failed.
    """
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(values[low:middle])
            low = middle
        except ValueError:  # or pa.ArrowInvalid, which is one
            high = middle
    return low


Read = Callable[[list[str] | None], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files whose digests were checked, for DuckDB to read.

    Attributes:
        paths: of open files, so that the bytes behind a path stay those that were checked.
        first_rows: number of each file's first row.
        constants: columns that have one value in all rows of a file, and this value of each file as text, or None.
    """

    paths: tuple[str, ...]
    first_rows: tuple[int, ...]
    constants: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)


Files = Callable[[], contextlib.AbstractContextManager[ParquetFiles | None]]


def no_files() -> contextlib.AbstractContextManager[ParquetFiles | None]:
    """There are no files that DuckDB could read."""
    return contextlib.nullcontext()


@dataclass(frozen=True)
class Data:
    """The data that is scanned.

    Attributes:
        schema: of all columns.
        read: gives the batches, the same rows in the same order each time; with names, only these columns.
        files: opens the same rows as Parquet files; None if that is not what they are.
    """

    schema: pa.Schema
    read: Read
    files: Files = no_files


Numbers = NDArray[np.int64]


def among(numbers: Numbers, first: int, rows: int) -> Numbers:
    """Those of sorted row numbers that are `first` to `first + rows - 1`, counted from `first`."""
    start, stop = np.searchsorted(numbers, [first, first + rows])
    return numbers[start:stop] - first


def without_rows(batch: pa.RecordBatch, first: int, left_out: Numbers) -> pa.RecordBatch:
    """A batch, whose first row has the number `first`, without the rows of these numbers (sorted)."""
    gone = among(left_out, first, batch.num_rows)
    if not len(gone):
        return batch
    stays = np.ones(batch.num_rows, bool)
    stays[gone] = False
    return batch.filter(pa.array(stays))


def number_before(row: int, left_out: Numbers) -> int:
    """The number that a row had before these rows (sorted numbers) were left out."""
    # Before each of the left out rows so many rows stay: a row comes after it if its own number is at least that.
    return row + int(np.searchsorted(left_out - np.arange(len(left_out)), row, "right"))


class UnfitColumn(ValueError):
    """A column cannot be used as a condition says; the message is the end of a sentence, without values of the data."""


def rows_that_meet(condition: Condition, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
    """Whether each row meets the condition: (rows,); UnfitColumn if a column's type does not fit.

    Args:
        columns: those of the condition, by name.
    """
    found = _Block(columns).condition(condition.tree)
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), bool)


def _kind(type_: pa.DataType) -> str | None:
    if pa.types.is_boolean(type_):
        return "flag"
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "text"
    return "time" if pa.types.is_temporal(type_) and not pa.types.is_duration(type_) else None


class _Block:
    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self._columns = columns
        self._rows = len(next(iter(columns.values())))

    def condition(self, node: ast.expr) -> pa.Array:
        """True, false or null for each row."""
        if isinstance(node, ast.BoolOp):
            join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            found = self.condition(node.values[0])
            for part in node.values[1:]:
                found = join(found, self.condition(part))
            return found
        if isinstance(node, ast.UnaryOp):
            return pc.invert(self.condition(node.operand))
        if isinstance(node, ast.Compare):
            return self._comparisons(node)
        values = self._column(node)
        if _kind(values.type) != "flag":
            raise UnfitColumn(f"takes column {column_of(node)!r} as true or false, and it holds {values.type}")
        return values

    def _comparisons(self, node: ast.Compare) -> pa.Array:
        sides = [node.left, *node.comparators]
        found = None
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            one = self._comparison(left, operator, right)
            found = one if found is None else pc.and_kleene(found, one)
        return found

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> pa.Array:
        if is_missing(right):
            missing = pc.is_null(self._raw(left))
            return missing if isinstance(operator, ast.Is | ast.Eq) else pc.invert(missing)
        if isinstance(operator, ast.In | ast.NotIn):
            assert isinstance(right, ast.List | ast.Tuple | ast.Set)
            found = self._compared(left, ast.Eq, right.elts[0])
            for one in right.elts[1:]:
                found = pc.or_kleene(found, self._compared(left, ast.Eq, one))
            return found if isinstance(operator, ast.In) else pc.invert(found)
        return self._compared(left, type(operator), right)

    def _compared(self, left: ast.expr, operator: type[ast.cmpop], right: ast.expr) -> pa.Array:
        first, second = self._value(left), self._value(right)
        kinds = _kind(first.type), _kind(second.type)
        if kinds == ("time", "text"):
            second = _moment(second, first.type)
        elif kinds == ("text", "time"):
            first = _moment(first, second.type)
        elif kinds[0] != kinds[1]:
            one, other = (_WHAT[str(kind)] for kind in kinds)
            raise UnfitColumn(f"compares {one} with {other} in {ast.unparse(left)!r} and {ast.unparse(right)!r}")
        try:
            found = _COMPARED[operator](first, second)
        except pa.ArrowException as error:
            raise UnfitColumn(f"compares {first.type} with {second.type}, which cannot be compared") from error
        return found if isinstance(found, pa.Array) else pa.repeat(found, self._rows)

    def _value(self, node: ast.expr) -> Any:
        """An array of this block's rows, or a scalar."""
        if isinstance(node, ast.Constant):
            return pa.scalar(node.value)
        if isinstance(node, ast.BinOp):
            return _without_nan(_ARITHMETIC[type(node.op)](self._number(node.left), self._number(node.right)))
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.operand, ast.Constant) and type(node.operand.value) is int:
                return pa.scalar(-node.operand.value if isinstance(node.op, ast.USub) else node.operand.value)
            value = self._number(node.operand)
            return pc.negate(value) if isinstance(node.op, ast.USub) else value
        return self._column(node)

    def _number(self, node: ast.expr) -> Any:
        """A value for arithmetic, as float64; 0 / 0 and the like are missing."""
        value = self._value(node)
        if _kind(value.type) != "number":
            raise UnfitColumn(f"calculates with {ast.unparse(node)!r}, which holds {value.type}")
        return value.cast(pa.float64())

    def _raw(self, node: ast.expr) -> Any:
        """A value, of whatever type, for a comparison with None."""
        name = column_of(node)
        found = self._value(node) if name is None else _without_nan(self._columns[name])
        return found if isinstance(found, pa.Array) else pa.repeat(found, self._rows)

    def _column(self, node: ast.expr) -> pa.Array:
        """A column in a type that compares: no NaN, and one of few types."""
        name = column_of(node)
        assert name is not None
        values = self._columns[name]
        kind = _kind(values.type)
        if kind is None and not pa.types.is_null(values.type):
            raise UnfitColumn(f"names column {name!r}, which holds {values.type}; a condition takes {_TAKES}")
        if pa.types.is_null(values.type):
            return values.cast(pa.float64())
        if pa.types.is_unsigned_integer(values.type) and values.type.bit_width == 64:
            return _narrowed(values)
        if pa.types.is_decimal(values.type) or pa.types.is_float16(values.type):
            values = values.cast(pa.float64())
        return _without_nan(values)


def _narrowed(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:  # Arrow compares no unsigned numbers of 64 bits with negative ones
        return values.cast(pa.float64(), safe=False)


def _without_nan(values: Any) -> Any:
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def _moment(text: Any, type_: pa.DataType) -> pa.Scalar:
    """An ISO date or time as a scalar of a column's type; UnfitColumn if it is none."""
    written = text.as_py() if isinstance(text, pa.Scalar) else None
    if written is None:
        raise UnfitColumn("compares a column of times with a column of texts")
    try:
        if pa.types.is_time(type_):
            return pa.scalar(time.fromisoformat(written), type_)
        moment = datetime.fromisoformat(written)
        if pa.types.is_date(type_):
            if moment.time() != time():
                raise ValueError("a date has no time of day")
            return pa.scalar(date(moment.year, moment.month, moment.day), type_)
        if (moment.tzinfo is None) != (type_.tz is None):
            raise ValueError("one has a time zone")
        return pa.scalar(moment, type_)
    except (ValueError, pa.ArrowException) as error:
        zone = " with a time zone" if getattr(type_, "tz", None) else ""
        raise UnfitColumn(f"compares a column of {type_} with {written!r}; write an ISO date or time{zone}") from error


def num_rows(file: pq.ParquetFile) -> int:
    """The rows that reading the whole file gives, from its footer alone: few bytes may stand for very many rows.

    They are those of its row groups, because the total in the footer may say anything.
    """
    return sum(file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
