"""A hash of 64 bits for each row, by what its values are: not by the names, the order or the width of its columns.

Numbers hash by their value in double precision, times by their moment, texts and tensors by their bytes. A null equals
NaN, and 0.0 equals -0.0. Different rows have the same hash by chance alone, or if their values are the same in another
order of the columns; such rows count as one where rows are compared with those of an earlier set.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_types import decoded
from data_contracts.profile.sketches import Hashes, mixed, of_texts

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Told apart before they are mixed: numbers, times, texts, lists, and what is missing.
_NUMBER, _WHOLE, _TIME, _TEXT, _LIST, _MISSING = (np.uint64(0x5851F42D4C957F2D * n % 2**64) for n in range(1, 7))
_EXACT = 2**53
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_MICROSECONDS = _PER_SECOND["us"]


def row_hashes(columns: Iterable[pa.Array]) -> Hashes:
    """The hash of each row: (rows,) uint64; there is at least one column."""
    total: Hashes | None = None
    for column in columns:
        found = mixed(value_hashes(column))
        total = found if total is None else total + found
    assert total is not None
    return mixed(total)


def value_hashes(values: pa.Array) -> Hashes:
    """The hash of each value of a column: (rows,) uint64."""
    values = decoded(values)
    type_ = values.type
    if pa.types.is_null(type_):
        return np.full(len(values), _MISSING)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        hashes = _reals(_filled(values.cast(pa.float64()), 0.0))
        return _with_missing(hashes, pc.fill_null(pc.is_nan(values.cast(pa.float64())), True))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        hashes = _lists(values)
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        hashes = _wholes(values)
    elif pa.types.is_temporal(type_):
        hashes = _times(values)
    else:
        hashes = mixed(of_texts(_texts(values)) + _TEXT)
    return _with_missing(hashes, pc.is_null(values)) if values.null_count else hashes


def _filled(values: pa.Array, filling: float) -> NDArray[np.float64]:
    return np.asarray(values.fill_null(filling).to_numpy(zero_copy_only=False), np.float64)


def _with_missing(hashes: Hashes, missing: pa.Array) -> Hashes:
    hashes[missing.to_numpy(zero_copy_only=False)] = _MISSING
    return hashes


def _reals(numbers: NDArray[np.float64]) -> Hashes:
    return mixed((numbers + 0.0).view(np.uint64) + _NUMBER)  # -0.0 becomes 0.0


def _wholes(values: pa.Array) -> Hashes:
    """Whole numbers as double precision where that is exact, so that 1 is 1.0."""
    wide = pa.uint64() if pa.types.is_unsigned_integer(values.type) else pa.int64()
    numbers = values.cast(wide).fill_null(0).to_numpy(zero_copy_only=False)
    hashes = _reals(numbers.astype(np.float64))
    # Compared in the numbers' own type; the magnitude of the least int64 has none.
    large = (numbers > _EXACT) if wide == pa.uint64() else (numbers > _EXACT) | (numbers < -_EXACT)
    if large.any():
        sign = (numbers[large] < 0).astype(np.uint64) * _GOLDEN
        hashes[large] = mixed(numbers[large].astype(np.uint64) + _WHOLE + sign)
    return hashes


def _times(values: pa.Array) -> Hashes:
    """Moments and lengths of time by microseconds, and what is left of nanoseconds."""
    type_ = values.type
    if pa.types.is_date32(type_):
        days = values.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return mixed((days * (86_400 * _MICROSECONDS)).view(np.uint64) + _TIME)
    narrow = pa.types.is_time32(type_)
    whole = values.cast(pa.int32()).cast(pa.int64()) if narrow else values.cast(pa.int64())
    numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
    unit = "ms" if pa.types.is_date64(type_) else type_.unit
    if unit != "ns":
        return mixed((numbers * (_MICROSECONDS // _PER_SECOND[unit])).view(np.uint64) + _TIME)
    micro, nano = np.divmod(numbers, 1000)
    return mixed(micro.view(np.uint64) + _TIME + nano.view(np.uint64) * _GOLDEN)


def _texts(values: pa.Array) -> pa.Array:
    """Texts and bytes as one array of large texts or bytes, whose offsets are 64 bits wide, without nulls."""
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    large = pa.large_string() if pa.types.is_string(values.type) else pa.large_binary()
    return values.cast(large).fill_null("" if large == pa.large_string() else b"")


def _lists(values: pa.Array) -> Hashes:
    """Lists by the hashes of their values, each mixed with its place."""
    lengths = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    inner = value_hashes(pc.list_flatten(values))
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(inner), dtype=np.int64) - np.repeat(starts, lengths)
    placed = mixed(inner + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(placed, dtype=np.uint64)])
    total = sums[starts + lengths] - sums[starts]
    return mixed(total + lengths.astype(np.uint64) + _LIST)
