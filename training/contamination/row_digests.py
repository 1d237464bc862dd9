"""Digests of whole rows: two rows have the same digest if and only if their columns hold the same values.

A null equals a null and NaN equals NaN, as in the splitter's keys; 0.0 equals -0.0, and numbers of different widths are
equal by value. The values of a tensor are compared byte for byte. The digest is 128 bits of BLAKE3, so equal digests
stand for equal rows. NumPy lays out a row's values; then one row at a time is hashed, at about 1 µs a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

DIGEST_BYTES = 16
_ZERO = b"\0" * DIGEST_BYTES


def row_digests(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.uint64]:
    """The digest of each row: (rows, 2) uint64, little-endian; the columns have the same types in each call."""
    return _hashed(np.concatenate([_laid_out(_joined(column)) for column in columns], axis=1))


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _hashed(rows: NDArray[np.uint8]) -> NDArray[np.uint64]:
    width, data = rows.shape[1], memoryview(rows.tobytes())
    found = [blake3(data[start : start + width]).digest(DIGEST_BYTES) for start in range(0, len(data), width)]
    return np.frombuffer(b"".join(found), "<u8").reshape(-1, 2)


def _laid_out(values: pa.Array) -> NDArray[np.uint8]:
    """A row of as many bytes for each value: whether there is one, and what it is."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    body = _bodies(values)
    body[~there] = 0
    return np.concatenate([there.astype(np.uint8)[:, None], body], axis=1)


def _bodies(values: pa.Array) -> NDArray[np.uint8]:
    type_ = values.type
    if pa.types.is_null(type_):
        return np.zeros((len(values), 0), np.uint8)
    if pa.types.is_floating(type_):
        numbers = values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan  # one of the many
        return _bytes_of(numbers.view(np.uint64))
    if pa.types.is_unsigned_integer(type_):
        return _bytes_of(values.cast(pa.uint64()).fill_null(0).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return _bytes_of(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    if pa.types.is_temporal(type_):
        narrow = pa.types.is_date32(type_) or pa.types.is_time32(type_)
        whole = values.cast(pa.int32()).cast(pa.int64()) if narrow else values.cast(pa.int64())
        return _bytes_of(whole.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _lists(values)
    return _texts(values)


def _bytes_of(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8).copy()


def _texts(values: pa.Array) -> NDArray[np.uint8]:
    """Texts and bytes by their digests; Arrow finds the distinct values, which are hashed once."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    encoded = values.dictionary_encode()
    known = [
        blake3(one.encode() if isinstance(one, str) else one).digest(DIGEST_BYTES)
        for one in encoded.dictionary.to_pylist()
    ]
    table = np.frombuffer(b"".join([*known, _ZERO]), np.uint8).reshape(-1, DIGEST_BYTES)
    return table[encoded.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)]


def _lists(values: pa.Array) -> NDArray[np.uint8]:
    """Lists by the digests of their values in order, so that no two lists of different lengths are the same bytes."""
    inner = _laid_out(pc.list_flatten(values))
    width, data = inner.shape[1], memoryview(inner.tobytes())
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths) * width
    starts = (ends - lengths * width).tolist()
    found = [blake3(data[a:b]).digest(DIGEST_BYTES) for a, b in zip(starts, ends.tolist(), strict=True)]
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, DIGEST_BYTES).copy()
