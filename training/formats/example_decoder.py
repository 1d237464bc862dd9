"""The decoder: `tf.train.Example` messages become rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.quoting import text_of
from training.formats.example import Framed, Malformed, frozen, kind_of
from training.formats.kernels import read
from training.formats.kernels.arrays import Columns
from training.formats.kernels.native import BYTES, FLOAT, INT64

_NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}
_WRONG = {
    read.NO_MESSAGE: "it is not a tf.train.Example",
    read.TOO_LONG: "a field is longer than its message",
    read.WIRE_TYPE: "it has a field of an unknown wire type",
    read.NUMBER_CUT: "a number is cut off",
    read.NUMBER_LONG: "a number has more than ten bytes",
}


def decode(framed: Framed, schema: pa.Schema, wanted: pa.Schema) -> pa.Table:
    """The rows of messages as a table with exactly the fields `wanted`, a subset of those of `schema`.

    `framed.data` has SPARE_BYTES after the last message. Raises Malformed.
    """
    keys = [name.encode() for name in schema.names]
    bounds = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64)
    asked = set(wanted.names)
    kinds = np.array([_kind(field) if field.name in asked else 0 for field in schema], np.int64)
    begins = np.empty((len(keys), len(framed.starts)), np.int64)
    ends = np.empty_like(begins)
    looked_for = Columns(frozen(np.frombuffer(b"".join(keys), np.uint8)), bounds, kinds)
    row, code, at, kind = read.locate(framed.data, framed.starts, framed.stops, looked_for, begins, ends)
    if code == read.OTHER_LIST:
        raise Malformed(
            row, f"feature {schema.names[at]!r} is a {_NAMES[kind]} list, the schema asks for {_NAMES[kinds[at]]}"
        )
    if code != read.OK:
        raise Malformed(row, _WRONG[code])
    columns = []
    for field in wanted:
        at = schema.get_field_index(field.name)
        try:
            columns.append(_array(field, kinds[at], framed.data, begins[at], ends[at]))
        except Malformed as error:
            raise Malformed(error.row, f"column {field.name!r} does not hold {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=wanted)


def _kind(field: pa.Field) -> int:
    kind = kind_of(field.type)
    if kind is None:
        raise Malformed(0, f"column {field.name!r} is {field.type}, which a tf.train.Example cannot hold")
    return kind


def _array(
    field: pa.Field, kind: int, data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> pa.Array:
    """One column, from the places of its lists in each message."""
    item = field.type.value_type if pa.types.is_list(field.type) else field.type
    rows = np.arange(len(begins) + 1, dtype=np.int64)
    # The usual case: one number in every row.
    if kind == FLOAT and item == field.type:
        bits = _room(len(begins), np.uint32)
        if read.single_floats(data, begins, ends, bits):
            return _from_floats(bits, item, rows)
    if kind == INT64 and item == field.type:
        numbers = _room(len(begins), np.int64)
        if read.single_ints(data, begins, ends, numbers):
            return _from_int64(numbers, item, rows)
    counts, sizes = np.empty_like(begins), np.empty_like(begins)
    row, code = read.count_values(data, begins, ends, kind, counts, sizes)
    if code != read.OK:
        raise Malformed(row, _WRONG[code])
    absent = counts < 0
    validity = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent.any() else None
    listed = item != field.type
    if listed:
        rows = _bounds(np.maximum(counts, 0))
    else:
        odd = np.flatnonzero(~absent & (counts != 1))
        if len(odd):
            raise Malformed(odd[0], f"it has {counts[odd[0]]} values where one is meant")
    if kind == BYTES:
        values = _bytes_array(item, rows, sizes, data, begins, ends, listed)
    elif kind == FLOAT:
        bits = _room(rows[-1], np.uint32, validity is not None)
        read.fill_raw(data, begins, ends, kind, rows * 4, bits.view(np.uint8))
        values = _from_floats(bits, item, rows)
    else:
        numbers = _room(rows[-1], np.int64, validity is not None)
        row, code = read.fill_ints(data, begins, ends, rows, numbers)
        if code != read.OK:
            raise Malformed(row, _WRONG[code])
        values = _from_int64(numbers, item, rows)
    if listed:
        return pa.Array.from_buffers(
            field.type, len(counts), [validity, pa.py_buffer(rows.astype(np.int32))], children=[values]
        )
    if validity is None or pa.types.is_null(item):
        return values
    return pa.Array.from_buffers(item, len(counts), [validity, *values.buffers()[1:]])


def _room(count: int, dtype: type, with_gaps: bool = False) -> NDArray[Any]:
    """Memory of Arrow's own pool, which keeps freed memory, so that the next block need not ask the system."""
    room: NDArray[Any] = np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)
    if with_gaps:
        room[:] = 0
    return room


def _bounds(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bounds of consecutive items of these sizes; Malformed if Arrow cannot represent them."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    if bounds[-1] >= 2**31:
        raise Malformed(np.searchsorted(bounds, 2**31) - 1, "it is larger than 2 GiB")
    return bounds


def _bytes_array(
    item: pa.DataType, rows: NDArray[np.int64], sizes: NDArray[np.int64], data: NDArray[np.uint8],
    begins: NDArray[np.int64], ends: NDArray[np.int64], listed: bool,
) -> pa.Array:  # fmt: skip
    if pa.types.is_fixed_size_binary(item):
        width = item.byte_width
        odd = np.flatnonzero((begins >= 0) & (sizes != width))
        if len(odd):
            raise Malformed(odd[0], f"it has {sizes[odd[0]]} bytes where {width} are meant")
        out = _room(len(sizes) * width, np.uint8, bool((begins < 0).any()))
        read.fill_raw(data, begins, ends, BYTES, rows * width, out)
        return pa.Array.from_buffers(item, len(sizes), [None, pa.py_buffer(out)])
    places = _bounds(sizes)
    items = places
    if listed:
        each = np.empty(rows[-1], np.int64)
        read.item_sizes(data, begins, ends, each)
        items = _bounds(each)
    out = _room(places[-1], np.uint8)
    read.fill_raw(data, begins, ends, BYTES, places, out)
    buffers = [None, pa.py_buffer(items.astype(np.int32)), pa.py_buffer(out)]
    return _cast(pa.Array.from_buffers(pa.binary(), rows[-1], buffers), item, rows)


def _from_floats(bits: NDArray[np.uint32], item: pa.DataType, rows: NDArray[np.int64]) -> pa.Array:
    return _cast(pa.array(bits.view("<f4")), item, rows)


def _from_int64(numbers: NDArray[np.int64], item: pa.DataType, rows: NDArray[np.int64]) -> pa.Array:
    if pa.types.is_null(item):
        return pa.nulls(len(numbers))
    values = pa.array(numbers)
    if pa.types.is_temporal(item) and item.bit_width == 32:
        values = _cast(values, pa.int32(), rows)
    return _cast(values, item, rows)


def _cast(values: pa.Array, item: pa.DataType, rows: NDArray[np.int64]) -> pa.Array:
    """The values as the column's type; Malformed names the first row that the type cannot hold."""
    try:
        return values.cast(item)
    except pa.ArrowException:
        for row in range(len(rows) - 1):
            try:
                values.slice(rows[row], rows[row + 1] - rows[row]).cast(item)
            except pa.ArrowException as error:
                raise Malformed(row, text_of(error)) from error
        raise
