"""Stable digests of key values: the same key gives the same digest on any machine, in any file, in any width.

A call of a hasher for each message takes longer than the BLAKE3 digest of its few bytes, so native code digests 16 at a
time once there are enough of them to pay for generating it. A hasher digests the first messages, and long ones.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.arrow_rows import decoded_column
from data_contracts.quoting import type_shown

# Rows that show whether a batch's keys repeat.
_SAMPLE = 256
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DIGEST_BYTES = 16
# Messages that a hasher digests in a process before native code is generated, which takes as long as 100,000 of them.
FEW = 2**15


class UnusableKey(ValueError):
    """A column whose type cannot be a key; `column` is its index among the key's columns."""

    def __init__(self, column: int, type_: pa.DataType) -> None:
        super().__init__(f"is {type_shown(type_)}, which cannot be a key")
        self.column = column


def key_digests(columns: Sequence[pa.ChunkedArray], seed: int) -> NDArray[np.uint64]:
    """The first 128 bits of the BLAKE3 digest of each row's key: (rows, 2) uint64, little-endian.

    A null is a value like any other: rows without a key stay together. Dictionaries and extension types count by their
    values. UnusableKey for nested types.
    """
    per_row: list[pa.Array | None] = []
    framed = []
    start = f"trainwright key {seed}\0".encode()
    for index, column in enumerate(columns):
        plain = decoded_column(column)
        if pa.types.is_nested(plain.type) or pa.types.is_run_end_encoded(plain.type):
            raise UnusableKey(index, column.type)
        distinct, of_row = _distinct(plain.combine_chunks())
        values = _framed(b"" if index else start, *_typed(distinct, index))
        if plain.null_count:
            values = pa.concat_arrays([values, _framed(b"" if index else start, b"n", pa.array([b""]))])
        framed.append(values)
        per_row.append(None if of_row is None else of_row.fill_null(len(values) - 1))
    if len(columns) == 1:
        return _digests(framed[0]) if per_row[0] is None else _digests(framed[0])[per_row[0].to_numpy()]
    return _digests(_joined(*(one if at is None else one.take(at) for one, at in zip(framed, per_row, strict=True))))


def _distinct(values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """The distinct values and each row's index into them; if the first rows hardly repeat any, all values and None."""
    if not values.null_count and len(values[:_SAMPLE].unique()) > _SAMPLE // 2:
        return values, None
    encoded = values.dictionary_encode()
    return encoded.dictionary, encoded.indices


def _framed(start: bytes, letter: bytes, values: pa.Array) -> pa.Array:
    """Letter and value after their length, so that no two keys of several columns are the same bytes; `start` before.

    Everything is joined at once: each join copies every value.
    """
    values = values.cast(pa.large_binary())
    lengths = pc.binary_length(values).to_numpy().astype("<i8") + 1
    heads = pa.Array.from_buffers(pa.binary(8), len(lengths), [None, pa.py_buffer(lengths)])
    before, kind = (pa.scalar(part, pa.large_binary()) for part in (start, letter))
    return _joined(before, heads.cast(pa.large_binary()), kind, values)


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _digests(keys: pa.Array) -> NDArray[np.uint64]:
    _, offsets, data = keys.buffers()
    at = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    return digests(np.frombuffer(data or b"", np.uint8), at)


def _typed(values: pa.Array, index: int) -> tuple[bytes, pa.Array]:
    """A letter for the values' kind, and each value as bytes that do not depend on the column's width or unit."""
    type_ = values.type
    if pa.types.is_boolean(type_):
        return b"i", values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_integer(type_):
        return b"i", values.cast(pa.string())
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return b"s", values
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return b"b", values
    letter, texts = _typed_one_by_one(values, index)
    return letter, pa.array(texts, pa.large_binary())


def _typed_one_by_one(values: pa.Array, index: int) -> tuple[bytes, list[bytes]]:
    """`_typed` for types that are seldom keys, value by value."""
    type_ = values.type
    if pa.types.is_floating(type_):
        return b"f", [b"nan" if value != value else struct.pack("<d", value + 0.0) for value in values.to_pylist()]
    if pa.types.is_timestamp(type_):
        scale = 10**9 // _PER_SECOND[type_.unit]
        return b"t", [b"%d" % (value * scale) for value in values.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(type_):
        return b"d", [b"%d" % value for value in values.cast(pa.int32()).to_pylist()]
    if pa.types.is_decimal(type_):
        return b"m", [format(value.normalize(), "f").encode() for value in values.to_pylist()]
    if pa.types.is_null(type_):
        return b"n", []
    raise UnusableKey(index, type_)


def group_starts(*columns: NDArray[Any]) -> NDArray[np.int64]:
    """Where groups of equal rows begin; `columns`, each (rows,), hold sorted rows."""
    changed = np.zeros(len(columns[0]), bool)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


_digested = 0


def digests(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The first 128 bits of each message's digest, (n, 2) uint64, little-endian.

    Args:
        data: the messages one after another.
        offsets: where each message begins in `data`, and where the last one ends: (n + 1,); no message is empty.
    """
    global _digested
    _digested += len(offsets) - 1
    if _digested <= FEW or sys.byteorder == "big":
        return _one_by_one(data, offsets[:-1], offsets[1:])
    return _together(data, offsets)


def _one_by_one(data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint64]:
    view = data.data
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    joined = b"".join([blake3(view[start:stop]).digest(DIGEST_BYTES) for start, stop in pairs])
    return np.frombuffer(joined, "<u8").reshape(-1, 2)


def _together(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    # Imported when there is much to digest.
    from training.shard.blake3_native import CHUNK_BYTES, DIGEST_WORDS, LANES, SPARE_BYTES, native

    rows, first = len(offsets) - 1, offsets[0]
    groups = -(-rows // LANES)
    # The last group is filled up with messages of one byte.
    starts, lengths = np.zeros(groups * LANES, np.int64), np.ones(groups * LANES, np.int32)
    starts[:rows] = offsets[:-1] - first
    sizes = np.diff(offsets)
    lengths[:rows] = np.minimum(sizes, CHUNK_BYTES)
    spaced = np.empty(offsets[-1] - first + SPARE_BYTES, np.uint8)
    spaced[:-SPARE_BYTES] = data[first : offsets[-1]]
    spaced[-SPARE_BYTES:] = 0
    words = np.empty((groups, DIGEST_WORDS, LANES), "<u4")
    digest, _ = native()
    digest(groups, *(part.ctypes.data for part in (spaced, starts, lengths, words)))
    made = np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, DIGEST_WORDS)[:rows].view("<u8")
    long = np.flatnonzero(sizes > CHUNK_BYTES)
    made[long] = _one_by_one(data, offsets[long], offsets[long + 1])
    return made
