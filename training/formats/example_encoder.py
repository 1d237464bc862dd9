"""The encoder: rows of a table become framed `tf.train.Example` messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from training.formats.example import Framed, frozen, kind_of
from training.formats.kernels import write
from training.formats.kernels.arrays import Entries
from training.formats.kernels.native import BYTES, FLOAT, SPARE_BYTES


def encode(table: pa.Table, most_bytes: int) -> Iterator[Framed]:
    """The rows as records of `most_bytes` at a time, or one record that is larger; each buffer is reused for the next.

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
            write.bytes_sizes(rows, items, sizes)
        elif kind == FLOAT:
            values = _filled(flat.cast(pa.float32())).view(np.uint32)
            np.multiply(np.diff(rows), 4, out=sizes)
        else:
            values = frozen(_as_int64(flat))
            write.int64_sizes(rows, values, sizes)
        valid = np.ones(len(array), np.uint8)
        if array.null_count:
            valid[:] = array.is_valid().to_numpy(zero_copy_only=False)
        return cls(kind, frozen(np.frombuffer(name.encode(), np.uint8)), valid, rows, items, frozen(values), sizes)

    def put(self, out: NDArray[np.uint8], first: int, stop: int, places: NDArray[np.int64]) -> None:
        """Write the entries of rows `first` to `stop` at their `places`, (rows,), and advance the places."""
        entries = Entries(self.key, self.valid, self.sizes, self.rows)
        if self.kind == BYTES:
            write.put_bytes(out, first, stop, places, entries, self.items, self.values)
        elif self.kind == FLOAT:
            write.put_floats(out, first, stop, places, entries, self.values)
        else:
            write.put_ints(out, first, stop, places, entries, self.values)


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
