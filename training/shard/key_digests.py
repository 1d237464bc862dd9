"""Stable digests of key values: the same key gives the same digest on any machine, in any file, in any width."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3
from numpy.typing import NDArray

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DIGEST_BYTES = 16


class UnusableKey(ValueError):
    """A column whose type cannot be a key; `column` is its index among the key's columns."""

    def __init__(self, column: int, type_: pa.DataType) -> None:
        super().__init__(f"is {type_}, which cannot be a key")
        self.column = column


def key_digests(columns: Sequence[pa.ChunkedArray], seed: int) -> NDArray[np.uint64]:
    """The first 128 bits of the BLAKE3 digest of each row's key: (rows, 2) uint64, little-endian.

    A null is a value like any other: rows without a key stay together. UnusableKey for nested types.
    """
    # Arrow finds the distinct values, so Python sees each key of a batch once instead of each row.
    per_row, values = [], []
    for index, column in enumerate(columns):
        if pa.types.is_nested(column.type):
            raise UnusableKey(index, column.type)
        encoded = column.combine_chunks().dictionary_encode()
        values.append([*_typed(encoded.dictionary, index), b"n"])
        per_row.append(encoded.indices.fill_null(len(values[-1]) - 1).to_numpy().astype(np.int64))
    start = f"trainwright key {seed}\0".encode()
    if len(columns) == 1:
        return _digests(map(start.__add__, _framed(values[0])))[per_row[0]]
    distinct, rows = np.unique(np.stack(per_row), axis=1, return_inverse=True)
    framed = [_framed(column) for column in values]
    keys = (b"".join([start, *map(list.__getitem__, framed, key)]) for key in distinct.T.tolist())
    return _digests(keys)[rows.reshape(-1)]


def _framed(values: list[bytes]) -> list[bytes]:
    """Each value after its length, so that no two keys of several columns are the same bytes."""
    heads = {size: struct.pack("<Q", size) for size in set(map(len, values))}
    return [heads[len(value)] + value for value in values]


def _digests(keys: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join([blake3(key).digest(DIGEST_BYTES) for key in keys]), "<u8").reshape(-1, 2)


def _typed(values: pa.Array, index: int) -> list[bytes]:
    """Each value as a letter for its kind and bytes that do not depend on the column's width or unit."""
    type_ = values.type
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_):
        return [b"i%d" % value for value in values.to_pylist()]
    if pa.types.is_floating(type_):
        return [b"f" + (b"nan" if value != value else struct.pack("<d", value + 0.0)) for value in values.to_pylist()]
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return [b"s" + value.encode() for value in values.to_pylist()]
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [b"b" + value for value in values.to_pylist()]
    if pa.types.is_timestamp(type_):
        scale = 10**9 // _PER_SECOND[type_.unit]
        return [b"t%d" % (value * scale) for value in values.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(type_):
        return [b"d%d" % value for value in values.cast(pa.int32()).to_pylist()]
    if pa.types.is_decimal(type_):
        return [b"m" + _plain(value) for value in values.to_pylist()]
    if pa.types.is_null(type_):
        return []
    raise UnusableKey(index, type_)


def _plain(value: Any) -> bytes:
    return format(value.normalize(), "f").encode()
