"""Kernels that write rows as framed `tf.train.Example` messages into one buffer, a column at a time.

They compute first the sizes of all entries, then the places of the messages, then write each column's entries in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from training.formats.kernels.arrays import ByteArray, Entries, FloatBits, Numbers
from training.formats.kernels.native import (
    BYTES,
    FLOAT,
    HEAD_BYTES,
    INT64,
    LENGTH,
    TAIL_BYTES,
    copy,
    kernel,
    load,
    masked_crc,
    store,
)

# The largest head of a map entry without its key, including surplus copied bytes.
HEAD_SPARE_BYTES = 64


@kernel
def _varint_bytes(value: Any) -> Any:
    size = 1
    while value >= np.uint64(0x80):
        value >>= np.uint64(7)
        size += 1
    return size


@kernel
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    while value >= np.uint64(0x80):
        out[at] = value & np.uint64(0x7F) | np.uint64(0x80)
        value >>= np.uint64(7)
        at += 1
    out[at] = value
    return at + 1


@kernel
def _delimited(size: Any) -> Any:
    """Bytes of a length-delimited field with a field number below 16, whose content has `size` bytes."""
    return 1 + _varint_bytes(np.uint64(size)) + size


@kernel
def _put_delimiter(out: Any, at: Any, number: Any, size: Any) -> Any:
    out[at] = number << 3 | LENGTH
    return _put_varint(out, at + 1, np.uint64(size))


@kernel
def bytes_sizes(rows: Numbers, items: Numbers, sizes: Numbers) -> None:
    """Per row the bytes of its BytesList: values `rows[i]` to `rows[i + 1]`, where value k is `items[k]` onwards."""
    for row in range(len(sizes)):
        size = 0
        for item in range(rows[row], rows[row + 1]):
            size += _delimited(items[item + 1] - items[item])
        sizes[row] = size


@kernel
def int64_sizes(rows: Numbers, values: Numbers, sizes: Numbers) -> None:
    """Per row, the bytes of its values as varints."""
    for row in range(len(sizes)):
        size = 0
        for item in range(rows[row], rows[row + 1]):
            size += _varint_bytes(np.uint64(values[item]))
        sizes[row] = size


@kernel
def _list_bytes(kind: Any, size: Any) -> Any:
    """Bytes of a list message: packed numbers need one more field, which is left out when there are none."""
    return size if kind == BYTES or size == 0 else _delimited(size)


@kernel
def add_entries(kind: int, key: ByteArray, valid: ByteArray, sizes: Numbers, features: Numbers) -> None:
    """Add to each row's `features` the bytes of one column's map entry; a null has no entry."""
    known, entry = -1, 0
    for row in range(len(sizes)):
        if valid[row]:
            if sizes[row] != known:
                known = sizes[row]
                feature = _delimited(_list_bytes(kind, known))
                entry = _delimited(_delimited(len(key)) + _delimited(feature))
            features[row] += entry


@kernel
def lay_out(features: Numbers, first: int, most_bytes: int, starts: Numbers, stops: Numbers) -> Any:
    """Places of the messages from row `first` on, with room for a record's frame; returns (next row, bytes), at least
    one row.
    """
    at = 0
    row = first
    while row < len(features):
        size = _delimited(features[row])
        if row > first and at + HEAD_BYTES + size + TAIL_BYTES > most_bytes:
            break
        starts[row] = at + HEAD_BYTES
        stops[row] = starts[row] + size
        at = stops[row] + TAIL_BYTES
        row += 1
    return row, at


@kernel
def put_heads(out: ByteArray, features: Numbers, first: int, stop: int, places: Numbers) -> None:
    """Begin the messages of rows `first` to `stop` at their `places`, and advance the places."""
    for row in range(first, stop):
        places[row] = _put_delimiter(out, places[row], 1, features[row])


@kernel
def _make_head(head: Any, kind: Any, key: Any, size: Any) -> Any:
    """Write the part of a map entry before values of `size` bytes into `head`; returns the place after it."""
    values = _list_bytes(kind, size)
    feature = _delimited(values)
    at = _put_delimiter(head, 0, 1, _delimited(len(key)) + _delimited(feature))
    at = _put_delimiter(head, at, 1, len(key))
    for index in range(len(key)):
        head[at + index] = key[index]
    at = _put_delimiter(head, at + len(key), 2, feature)
    at = _put_delimiter(head, at, kind, values)
    return at if kind == BYTES or size == 0 else _put_delimiter(head, at, 1, size)


@kernel
def _put_head(out: Any, at: Any, head: Any, end: Any) -> Any:
    """Copy a head; up to seven surplus bytes fall on what is written later: values, next column or frame."""
    for index in range(0, end, 8):
        store(out, at + index, load(head, index))
    return at + end


@kernel
def put_bytes(
    out: ByteArray, first: int, stop: int, places: Numbers, entries: Entries, items: Numbers, data: ByteArray
) -> None:
    """Write the entries of a BytesList column (`Entries`) at `places`, and advance the places.

    Value k has the bytes `items[k]` to `items[k + 1]` of `data`.
    """
    key, valid, sizes, rows = entries
    head = np.empty(len(key) + HEAD_SPARE_BYTES, np.uint8)
    known, end = -1, 0
    for row in range(first, stop):
        if valid[row]:
            if sizes[row] != known:
                known, end = sizes[row], _make_head(head, BYTES, key, sizes[row])
            at = _put_head(out, places[row], head, end)
            for item in range(rows[row], rows[row + 1]):
                size = items[item + 1] - items[item]
                at = _put_delimiter(out, at, 1, size)
                copy(out, at, data, items[item], size)
                at += size
            places[row] = at


@kernel
def put_floats(out: ByteArray, first: int, stop: int, places: Numbers, entries: Entries, values: FloatBits) -> None:
    """Write the entries of a FloatList column."""
    key, valid, sizes, rows = entries
    head = np.empty(len(key) + HEAD_SPARE_BYTES, np.uint8)
    known, end = -1, 0
    for row in range(first, stop):
        if valid[row]:
            if sizes[row] != known:
                known, end = sizes[row], _make_head(head, FLOAT, key, sizes[row])
            at = _put_head(out, places[row], head, end)
            for item in range(rows[row], rows[row + 1]):
                store(out, at, np.uint64(values[item]))  # four surplus bytes, see _put_head
                at += 4
            places[row] = at


@kernel
def put_ints(out: ByteArray, first: int, stop: int, places: Numbers, entries: Entries, values: Numbers) -> None:
    """Write the entries of an Int64List column."""
    key, valid, sizes, rows = entries
    head = np.empty(len(key) + HEAD_SPARE_BYTES, np.uint8)
    known, end = -1, 0
    for row in range(first, stop):
        if valid[row]:
            if sizes[row] != known:
                known, end = sizes[row], _make_head(head, INT64, key, sizes[row])
            at = _put_head(out, places[row], head, end)
            for item in range(rows[row], rows[row + 1]):
                at = _put_varint(out, at, np.uint64(values[item]))
            places[row] = at


@kernel
def frame(out: ByteArray, first: int, stop: int, starts: Numbers, stops: Numbers) -> None:
    """Put length and checksums around the messages of rows `first` to `stop`."""
    for row in range(first, stop):
        head = starts[row] - HEAD_BYTES
        store(out, head, np.uint64(stops[row] - starts[row]))
        _put_crc(out, head + 8, masked_crc(out, head, head + 8))
        _put_crc(out, stops[row], masked_crc(out, starts[row], stops[row]))


@kernel
def _put_crc(out: Any, at: Any, crc: Any) -> None:
    for index in range(4):
        out[at + index] = crc >> np.uint64(8 * index) & np.uint64(0xFF)
