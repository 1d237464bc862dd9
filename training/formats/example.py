"""Rows as `tf.train.Example` messages in protobuf's wire format, without TensorFlow: encoder and decoder.

    Example { Features features = 1 }            Feature { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }
    Features { map<string, Feature> feature = 1 }        each list: { repeated value = 1 }, numbers packed

A null is a feature that is absent. Integers, booleans and times are Int64List; float16 and float32 are FloatList;
strings, bytes and tensors (raw, row-major, little-endian) are BytesList. Ours are written in the schema's order;
any order, unpacked numbers and unknown fields are read. Wire format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from training.formats.kernels import read, write
from training.formats.kernels.native import BYTES, FLOAT, INT64, SPARE_BYTES

_NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int64"}
_WRONG = {
    read.NO_MESSAGE: "it is no tf.train.Example",
    read.TOO_LONG: "a field is longer than its message",
    read.WIRE_TYPE: "it has a field of an unknown wire type",
    read.NUMBER_CUT: "a number is cut off",
    read.NUMBER_LONG: "a number has more than ten bytes",
}


class Malformed(ValueError):
    """A message that is no tf.train.Example, or one that does not fit the schema; `row` is its number."""

    def __init__(self, row: int | np.integer, message: str) -> None:
        super().__init__(message)
        self.row = int(row)


def kind_of(type_: pa.DataType) -> int | None:
    """The field number of the list that holds a column of this type, or None if none can."""
    if pa.types.is_list(type_):
        return kind_of(type_.value_type)
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return BYTES
    if pa.types.is_float16(type_) or pa.types.is_float32(type_):
        return FLOAT
    whole = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null, pa.types.is_temporal)
    return INT64 if any(is_one(type_) for is_one in whole) else None


# ---- encoding


@dataclass(frozen=True)
class Framed:
    """Records in a buffer: the whole of it, and where each message lies in it."""

    data: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


def encode(table: pa.Table, most_bytes: int) -> Iterator[Framed]:
    """The rows as records of `most_bytes` at a time, or one that is larger; each buffer is used again for the next.

    The table's chunks are joined and its integers widened, so a block of rows at a time bounds the memory.
    """
    rows = table.num_rows
    features = np.zeros(rows, np.int64)
    columns = [_Column.of(name, column) for name, column in zip(table.column_names, table.columns, strict=True)]
    for column in columns:
        write.add_entries(column.kind, column.key, column.valid, column.sizes, features)
    starts, stops = np.empty(rows, np.int64), np.empty(rows, np.int64)
    out = np.empty(0, np.uint8)
    done = 0
    while done < rows:
        first = done
        done, size = write.lay_out(features, first, most_bytes, starts, stops)
        if size + SPARE_BYTES > len(out):
            out = np.empty(size + SPARE_BYTES, np.uint8)
        places = starts.copy()
        write.put_heads(out, features, first, done, places)
        for column in columns:
            column.put(out, first, done, places)
        write.frame(out, first, done, starts, stops)
        yield Framed(out[:size], starts[first:done], stops[first:done])


@dataclass(frozen=True)
class _Column:
    """One column of a block as flat arrays.

    Attributes:
        valid: per row 0 for a null.
        rows: row i has the values `rows[i]` to `rows[i + 1]`.
        items: BytesList alone: value k has the bytes `items[k]` to `items[k + 1]` of `values`.
        values: bytes, the bits of float32 values as uint32, or int64.
        sizes: bytes of each row's values on the wire.
    """

    kind: int
    key: np.ndarray
    valid: np.ndarray
    rows: np.ndarray
    items: np.ndarray
    values: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray) -> _Column:
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        kind = kind_of(array.type)
        assert kind is not None, f"refuse() lets {array.type} through"
        rows, flat = _flat(array)
        items = np.zeros(0, np.int64)
        sizes = np.empty(len(array), np.int64)
        if kind == BYTES:
            items, values = _bytes(flat)
            write.bytes_sizes(rows, items, sizes)
        elif kind == FLOAT:
            values = _filled(flat.cast(pa.float32())).view(np.uint32)
            np.multiply(np.diff(rows), 4, out=sizes)
        else:
            values = _frozen(_as_int64(flat))
            write.int64_sizes(rows, values, sizes)
        valid = np.ones(len(array), np.uint8)
        if array.null_count:
            valid[:] = array.is_valid().to_numpy(zero_copy_only=False)
        return cls(kind, _frozen(np.frombuffer(name.encode(), np.uint8)), valid, rows, items, _frozen(values), sizes)

    def put(self, out: np.ndarray, first: int, stop: int, places: np.ndarray) -> None:
        """Write the entries of rows `first` to `stop` at their places, which move behind them."""
        common = (out, first, stop, places, self.key, self.valid, self.sizes, self.rows)
        if self.kind == BYTES:
            write.put_bytes(*common, self.items, self.values)
        elif self.kind == FLOAT:
            write.put_floats(*common, self.values)
        else:
            write.put_ints(*common, self.values)


def _flat(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Where each row's values begin and end, and all values."""
    if not pa.types.is_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int64), array
    offsets = array.offsets.to_numpy().astype(np.int64)
    # `values` is the child of the whole column, of which this block may be a small part.
    return offsets - offsets[0], array.values.slice(offsets[0], offsets[-1] - offsets[0])


def _bytes(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where each value begins and ends, and the bytes that hold them all."""
    first, stop = array.offset, array.offset + len(array)
    buffers = array.buffers()
    if pa.types.is_fixed_size_binary(array.type):
        items = np.arange(first, stop + 1, dtype=np.int64) * array.type.byte_width
    elif buffers[1] is None or not buffers[1].size:
        items = np.zeros(1, np.int64)
    else:
        items = np.frombuffer(buffers[1], np.int32)[first : stop + 1].astype(np.int64)
    data = buffers[-1]
    return items, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _as_int64(values: pa.Array) -> np.ndarray:
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64)
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32())
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return _filled(values.cast(pa.int64()))


def _filled(values: pa.Array) -> np.ndarray:
    """Numbers with zeros for nulls, copied only if there are any."""
    return (values.fill_null(0) if values.null_count else values).to_numpy()


def _frozen(array: np.ndarray) -> np.ndarray:
    """The array as one that cannot be written: Numba compiles anew for every kind of array."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


# ---- decoding


def decode(framed: Framed, schema: pa.Schema, wanted: pa.Schema) -> pa.Table:
    """The rows of messages as a table with exactly the fields `wanted`, those of `schema` or some of them.

    `framed.data` has SPARE_BYTES behind the last message. Raises Malformed.
    """
    keys = [name.encode() for name in schema.names]
    bounds = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64)
    kinds = np.array([_kind(field) if field.name in wanted.names else 0 for field in schema], np.int64)
    begins = np.empty((len(keys), len(framed.starts)), np.int64)
    ends = np.empty_like(begins)
    row, code, at, kind = read.locate(
        framed.data, framed.starts, framed.stops, _frozen(np.frombuffer(b"".join(keys), np.uint8)), bounds, kinds,
        begins, ends,
    )  # fmt: skip
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


def _array(field: pa.Field, kind: int, data: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> pa.Array:
    """One column from where its lists lie in each message."""
    item = field.type.value_type if pa.types.is_list(field.type) else field.type
    rows = np.arange(len(begins) + 1, dtype=np.int64)
    # Most columns have one number in every row.
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


def _room(count: int, dtype: type, with_gaps: bool = False) -> np.ndarray:
    """Memory of Arrow's own pool, which keeps what is given back, so that the next block need not ask the system."""
    room: np.ndarray = np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)
    if with_gaps:
        room[:] = 0
    return room


def _bounds(sizes: np.ndarray) -> np.ndarray:
    """Where things of these sizes begin and end when they stand one after another; Malformed if Arrow cannot say."""
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    if bounds[-1] >= 2**31:
        raise Malformed(np.searchsorted(bounds, 2**31) - 1, "it is larger than 2 GiB")
    return bounds


def _bytes_array(
    item: pa.DataType, rows: np.ndarray, sizes: np.ndarray, data: np.ndarray, begins: np.ndarray, ends: np.ndarray,
    listed: bool,
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


def _from_floats(bits: np.ndarray, item: pa.DataType, rows: np.ndarray) -> pa.Array:
    return _cast(pa.array(bits.view("<f4")), item, rows)


def _from_int64(numbers: np.ndarray, item: pa.DataType, rows: np.ndarray) -> pa.Array:
    if pa.types.is_null(item):
        return pa.nulls(len(numbers))
    values = pa.array(numbers)
    if pa.types.is_temporal(item) and item.bit_width == 32:
        values = _cast(values, pa.int32(), rows)
    return _cast(values, item, rows)


def _cast(values: pa.Array, item: pa.DataType, rows: np.ndarray) -> pa.Array:
    """The values as the column's type; Malformed names the first row that it cannot hold."""
    try:
        return values.cast(item)
    except pa.ArrowException:
        for row in range(len(rows) - 1):
            try:
                values.slice(rows[row], rows[row + 1] - rows[row]).cast(item)
            except pa.ArrowException as error:
                raise Malformed(row, str(error)) from error
        raise
