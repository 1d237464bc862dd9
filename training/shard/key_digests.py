"""Stable digests of key values: the same key gives the same digest on any machine, in any file, in any width.

A digest takes about 1 µs, so where keys repeat, each distinct key of a batch is digested once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.arrow_rows import decoded_column
from data_contracts.quoting import type_shown

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DIGEST_BYTES = 16


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
    per_row: list[pa.Array] = []
    framed = []
    start = f"trainwright key {seed}\0".encode()
    for index, column in enumerate(columns):
        plain = decoded_column(column)
        if pa.types.is_nested(plain.type) or pa.types.is_run_end_encoded(plain.type):
            raise UnusableKey(index, column.type)
        encoded = plain.combine_chunks().dictionary_encode()
        values = _framed(b"" if index else start, *_typed(encoded.dictionary, index))
        if plain.null_count:
            values = pa.concat_arrays([values, _framed(b"" if index else start, b"n", pa.array([b""]))])
        framed.append(values)
        per_row.append(encoded.indices.fill_null(len(values) - 1))
    if len(columns) == 1:
        return digests(*binary_parts(framed[0]))[per_row[0].to_numpy()]
    rows = [values.take(at) for values, at in zip(framed, per_row, strict=True)]
    return digests(*binary_parts(_joined(*rows)))


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


def binary_parts(values: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of large binary values one after another, and where each begins, as `digests` takes them."""
    _, offsets, data = values.buffers()
    at = np.frombuffer(offsets or bytes(8), np.int64)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data or b"", np.uint8), at


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


def digests(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The first 128 bits of each message's digest, (n, 2) uint64, little-endian.

    Args:
        data: the messages one after another.
        offsets: where each message begins in `data`, and where the last one ends: (n + 1,).
    """
    view = data.data
    joined = b"".join([blake3(view[start:stop]).digest(DIGEST_BYTES) for start, stop in pairwise(offsets.tolist())])
    return np.frombuffer(joined, "<u8").reshape(-1, 2)
