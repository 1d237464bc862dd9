"""TFRecord shards: `tf.train.Example` messages in protobuf's wire format, framed as TensorFlow frames them, without it.

A record is the message's length (uint64), the masked CRC-32C of those 8 bytes (uint32), the message, and the masked
CRC-32C of the message (uint32), all little-endian.

    Example { Features features = 1 }            Feature { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }
    Features { map<string, Feature> feature = 1 }        each list: { repeated value = 1 }, numbers packed

A null is a feature that is absent. Integers, booleans and times are Int64List; float16 and float32 are FloatList;
strings, bytes and tensors (raw, row-major, little-endian) are BytesList. We write features in the schema's order and
read them in any; numbers that are not packed and fields that the messages above do not have are refused. Wire format:
https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.errors import CorruptError, UsageError
from data_contracts.quoting import column_shown, text_of, type_shown
from training.formats import Shard, kernels
from training.formats.kernels import BYTES, FLOAT, HEAD_BYTES, INT64, SPARE_BYTES, Columns, Entries, words_of
from training.formats.schema import pick

SUFFIX = ".tfrecord"

# The most that is encoded or decoded at a time: bounds the memory beside the table itself. One row may be larger.
BLOCK_ROWS = 8_192
BLOCK_BYTES = 64 * 2**20
# Bytes written or read at a time: few enough to stay in the processor's cache.
WRITE_BYTES = 2**20
READ_BYTES = 2**21

_WRONG = {
    kernels.LENGTH_CHECKSUM: "the checksum of its length is wrong",
    kernels.CHECKSUM: "its checksum is wrong",
}
_MALFORMED = "it is not a tf.train.Example of this schema"


def refuse(table: pa.Table) -> None:
    """Raise UsageError, naming column and reason, if TFRecord cannot hold these rows as they are."""
    for field, column in zip(table.schema, table.columns, strict=True):
        reason, remedy = _obstacle(field.type, column)
        if reason:
            raise UsageError(
                f"Column {column_shown(repr(field.name))} cannot be stored as TFRecord: {reason}.",
                remedy=f"{remedy} in shards.transform, or set shards.format: parquet.",
            )


def _obstacle(type_: pa.DataType, column: pa.ChunkedArray) -> tuple[str, str]:
    """Why a column cannot be stored and the remedy, or two empty strings."""
    if pa.types.is_list(type_):
        values = pc.list_flatten(column)
        if values.null_count:
            return "it holds nulls inside lists", "Fill them"
        return _obstacle(type_.value_type, values)
    if pa.types.is_float64(type_):
        return "it is float64, and a tf.train.Example has 32-bit floats only", "Cast it to float32"
    if type_ == pa.uint64() and (pc.max(column).as_py() or 0) >= 2**63:
        return "it holds integers of 2^63 and more, and a tf.train.Example has signed 64-bit ones", "Cast it"
    if kind_of(type_) is None:
        return f"a tf.train.Example has nothing for {type_shown(type_)}", "Convert it"
    return "", ""


def encode(table: pa.Table) -> Iterator[memoryview]:
    """The bytes of a file with normalised rows; the same rows give the same bytes however they are chunked."""
    for block in _blocks(table):
        for framed in encode_examples(block, WRITE_BYTES):
            yield framed.data.data


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    """The rows, at most BLOCK_ROWS and BLOCK_BYTES at a time, or one row that is larger."""
    if table.num_rows > 1 and table.nbytes > BLOCK_BYTES:
        half = table.num_rows // 2
        yield from _blocks(table.slice(0, half))
        yield from _blocks(table.slice(half))
    else:
        for start in range(0, table.num_rows, BLOCK_ROWS):
            yield table.slice(start, BLOCK_ROWS)


def read_blocks(path: Shard, schema: pa.Schema, columns: list[str] | None = None, start: int = 0) -> Iterator[pa.Table]:
    """The rows of a file from row `start` on, in order, at most BLOCK_ROWS and READ_BYTES at a time.

    Both checksums of every record are checked, also of those before `start`.

    Args:
        schema: the dataset's; the result has exactly its fields, or those that `columns` names, in their order.

    Raises:
        CorruptError: a checksum, a length or a message is wrong, or a feature is not what the schema says.
        UsageError: `columns` names a column that the schema does not have.
    """
    wanted = pick(schema, columns)
    for framed, row, at in _records(path):
        if row + len(framed.starts) <= start:
            continue
        try:
            yield decode_examples(framed, schema, wanted).slice(max(0, start - row))
        except Malformed as error:
            place = at + framed.starts[error.row] - framed.starts[0]
            raise CorruptError(
                f"Shard {path.name}, record {row + error.row} at byte {place}: {error}, although its checksums fit.",
                remedy="It was not written for this schema; shard the data again.",
            ) from error


def _records(path: Shard) -> Iterator[tuple[Framed, int, int]]:
    """The records of a file, checked, a block at a time, with the number and the place of the block's first.

    The buffer is reused for the next block.
    """
    starts, stops = np.empty(BLOCK_ROWS, np.int64), np.empty(BLOCK_ROWS, np.int64)
    row = place = 0
    with path.open("rb", buffering=0) if isinstance(path, Path) else path.open() as file:
        unread = file.seek(0, os.SEEK_END)
        file.seek(0)
        data = np.empty(min(unread, READ_BYTES) + SPARE_BYTES, np.uint8)
        at = end = 0  # data[at:end] is read and not yet checked; it lies at `place` in the file
        while True:
            count, behind, code, size = kernels.records(data, words_of(data), at, end, starts, stops)
            if count:
                yield Framed(data, starts[:count], stops[:count]), row, place
            row, place, at = row + count, place + behind - at, behind
            where = f"Shard {path.name}, record {row} at byte {place}"
            if code != kernels.OK:
                raise CorruptError(f"{where}: {_WRONG[code]}.")
            if count == BLOCK_ROWS:
                continue
            if not unread and at == end:
                return
            if not unread or size > end - at + unread:
                raise CorruptError(f"{where}: the file ends within a record.")
            rest = data[at:end]
            needed = max(size, HEAD_BYTES) + SPARE_BYTES
            if needed > len(data):
                data = np.empty(needed, np.uint8)
            data[: len(rest)] = rest
            at, end = 0, len(rest)
            got = file.readinto(data[end:-SPARE_BYTES].data)
            end, unread = end + got, unread - got if got else 0


class Malformed(ValueError):
    """A message that is not a tf.train.Example, or does not fit the schema; `row` is its number."""

    def __init__(self, row: int | np.integer, message: str) -> None:
        super().__init__(message)
        self.row = int(row)


def kind_of(type_: pa.DataType) -> int | None:
    """The field number of the list that holds a column of this type; None if no list can."""
    if pa.types.is_list(type_):
        return kind_of(type_.value_type)
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return BYTES
    if pa.types.is_float16(type_) or pa.types.is_float32(type_):
        return FLOAT
    whole = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null, pa.types.is_temporal)
    return INT64 if any(is_one(type_) for is_one in whole) else None


@dataclass(frozen=True)
class Framed:
    """Records in a buffer: the whole buffer, and the place of each message in it."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, of any shape, as a read-only array: Numba compiles separately for every kind of array."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


def decode_examples(framed: Framed, schema: pa.Schema, selected: pa.Schema) -> pa.Table:
    """The rows of messages as a table with exactly the fields `selected`, a subset of those of `schema`.

    `framed.data` has SPARE_BYTES after the last message. Raises Malformed.
    """
    keys = [name.encode() for name in schema.names]
    bounds = np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64)
    names = set(selected.names)
    kinds = np.array([_kind(field) if field.name in names else 0 for field in schema], np.int64)
    begins = np.full((len(keys), len(framed.starts)), -1)
    ends = np.empty_like(begins)
    looked_for = Columns(frozen(np.frombuffer(b"".join(keys), np.uint8)), bounds, kinds)
    row = kernels.locate(framed.data, words_of(framed.data), framed.starts, framed.stops, looked_for, begins, ends)
    if row < len(framed.starts):
        raise Malformed(row, _MALFORMED)
    columns = []
    for field in selected:
        at = schema.get_field_index(field.name)
        try:
            columns.append(_array(field, kinds[at], framed.data, begins[at], ends[at]))
        except Malformed as error:
            raise Malformed(error.row, f"column {field.name!r} does not hold {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=selected)


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
        bits = np.empty(len(begins), np.uint32)
        if kernels.single_floats(words_of(data), begins, ends, bits):
            return _cast(pa.array(bits.view("<f4")), item, rows)
    if kind == INT64 and item == field.type:
        numbers = np.empty(len(begins), np.int64)
        if kernels.single_ints(data, begins, ends, numbers):
            return _from_int64(numbers, item, rows)
    counts, sizes = np.empty_like(begins), np.empty_like(begins)
    row = kernels.count_values(data, begins, ends, kind, counts, sizes)
    if row < len(begins):
        raise Malformed(row, _MALFORMED)
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
        values = _cast(pa.array(_raw(data, begins, ends, kind, rows * 4).view("<f4")), item, rows)
    else:
        numbers = np.zeros(rows[-1], np.int64)
        row = kernels.fill_ints(data, begins, ends, rows, numbers)
        if row < len(begins):
            raise Malformed(row, _MALFORMED)
        values = _from_int64(numbers, item, rows)
    if listed:
        return pa.Array.from_buffers(
            field.type, len(counts), [validity, pa.py_buffer(rows.astype(np.int32))], children=[values]
        )
    if validity is None or pa.types.is_null(item):
        return values
    return pa.Array.from_buffers(item, len(counts), [validity, *values.buffers()[1:]])


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
        out = _raw(data, begins, ends, BYTES, rows * width)
        return pa.Array.from_buffers(item, len(sizes), [None, pa.py_buffer(out)])
    places = _bounds(sizes)
    items = places
    if listed:
        each = np.empty(rows[-1], np.int64)
        kernels.item_sizes(data, begins, ends, each)
        items = _bounds(each)
    out = _raw(data, begins, ends, BYTES, places)
    buffers = [None, pa.py_buffer(items.astype(np.int32)), pa.py_buffer(out)]
    return _cast(pa.Array.from_buffers(pa.binary(), rows[-1], buffers), item, rows)


def _raw(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], kind: int, places: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The bytes of all rows' values, row i's from `places[i]` on."""
    out = np.zeros(places[-1] + SPARE_BYTES, np.uint8)
    kernels.fill_raw(data, words_of(data), begins, ends, kind, places, words_of(out))
    return out[:-SPARE_BYTES]


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


def encode_examples(table: pa.Table, most_bytes: int) -> Iterator[Framed]:
    """The rows as records of `most_bytes` at a time, or one record that is larger; each buffer is reused for the next.

    The table's chunks are joined and its integers widened, so a block of rows at a time bounds the memory.
    """
    rows = table.num_rows
    features = np.zeros(rows, np.int64)
    columns = [_Column.of(name, column) for name, column in zip(table.column_names, table.columns, strict=True)]
    for column in columns:
        kernels.add_entries(column.kind, column.key, column.valid, column.sizes, features)
    starts, stops = np.empty(rows, np.int64), np.empty(rows, np.int64)
    out = np.empty(0, np.uint8)
    done = 0
    while done < rows:
        first = done
        done, size = kernels.lay_out(features, first, most_bytes, starts, stops)
        if size + SPARE_BYTES > len(out):
            out = np.empty(size + SPARE_BYTES, np.uint8)
        places = starts.copy()
        kernels.put_heads(out, features, first, done, places)
        for column in columns:
            column.put(out, first, done, places)
        kernels.frame(out, words_of(out), first, done, starts, stops)
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
    key: NDArray[np.uint8]
    valid: NDArray[np.uint8]
    rows: NDArray[np.int64]
    items: NDArray[np.int64]
    values: NDArray[Any]
    sizes: NDArray[np.int64]

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
            kernels.bytes_sizes(rows, items, sizes)
        elif kind == FLOAT:
            values = _filled(flat.cast(pa.float32())).view(np.uint32)
            np.multiply(np.diff(rows), 4, out=sizes)
        else:
            values = frozen(_as_int64(flat))
            kernels.int64_sizes(rows, values, sizes)
        valid = np.ones(len(array), np.uint8)
        if array.null_count:
            valid[:] = array.is_valid().to_numpy(zero_copy_only=False)
        return cls(kind, frozen(np.frombuffer(name.encode(), np.uint8)), valid, rows, items, frozen(values), sizes)

    def put(self, out: NDArray[np.uint8], first: int, stop: int, places: NDArray[np.int64]) -> None:
        """Write the entries of rows `first` to `stop` at their `places`, (rows,), and advance the places."""
        entries, words = Entries(self.key, self.valid, self.sizes, self.rows), words_of(out)
        if self.kind == BYTES:
            kernels.put_bytes(out, words, first, stop, places, entries, self.items, self.values)
        elif self.kind == FLOAT:
            kernels.put_floats(words, first, stop, places, entries, self.values)
        else:
            kernels.put_ints(out, words, first, stop, places, entries, self.values)


def _flat(array: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """The bounds of each row's values, and all values."""
    if not pa.types.is_list(array.type):
        return np.arange(len(array) + 1, dtype=np.int64), array
    offsets = array.offsets.to_numpy().astype(np.int64)
    # `values` is the child of the whole column, of which this block may be a small part.
    return offsets - offsets[0], array.values.slice(offsets[0], offsets[-1] - offsets[0])


def _bytes(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The bounds of each value, and the bytes that hold them all."""
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


def _as_int64(values: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64)
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32())
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return _filled(values.cast(pa.int64()))


def _filled(values: pa.Array) -> NDArray[Any]:
    """Numbers with zeros for nulls, copied only if there are any."""
    return (values.fill_null(0) if values.null_count else values).to_numpy()
