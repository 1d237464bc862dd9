"""Tells what columns of an Arrow type hold, and gives their values in a plain type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DAY_NS = 86_400 * 10**9
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_MOST = 2**63 - 1


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def decoded(values: pa.Array) -> pa.Array:
    """The same values in a plain type; those of views as large texts or bytes, those of an extension type as stored.

    A null in a dictionary is a null. A narrow decimal becomes decimal128, for which Arrow has all functions.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return decoded(values.storage)
    if pa.types.is_dictionary(kind):
        return decoded(values.dictionary).take(values.indices)
    if pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return values.cast(pa.decimal128(kind.precision, kind.scale))
    return values


def decoded_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """`decoded` of each chunk; the chunks may have different dictionaries."""
    return pa.chunked_array([decoded(chunk) for chunk in column.chunks] or [decoded(pa.nulls(0, column.type))])


def is_time(kind: pa.DataType) -> bool:
    """Whether a column of this type holds dates or points in time."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def counts(times: pa.Array | pa.ChunkedArray) -> tuple[pa.Array | pa.ChunkedArray, int]:
    """Dates or times as whole numbers since 1970 (UTC), and the nanoseconds of their unit."""
    kind = times.type
    if pa.types.is_date32(kind):
        return times.cast(pa.int32()).cast(pa.int64()), DAY_NS
    return times.cast(pa.int64()), _UNIT_NS["ms" if pa.types.is_date64(kind) else kind.unit]


def microseconds(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Dates or times in microseconds since 1970 (UTC), as int64, rounded down.

    What int64 cannot hold, from the year 294,247 on, is the last time: an infinite date stays the last.
    """
    numbers, unit_ns = counts(times)
    if unit_ns == 1:
        floor = numbers.fill_null(0).to_numpy(zero_copy_only=False) // 1000
        return pa.array(floor, mask=np.asarray(numbers.is_null().to_numpy(zero_copy_only=False)))
    factor = unit_ns // 1000
    ends = pa.scalar(_MOST // factor, pa.int64()), pa.scalar(-(_MOST // factor), pa.int64())
    within = pc.max_element_wise(pc.min_element_wise(numbers, ends[0], skip_nulls=False), ends[1], skip_nulls=False)
    return pc.multiply(within, pa.scalar(factor, pa.int64()))


def before(times: pa.Array, edge_us: int) -> pa.Array:
    """Whether each time is before an edge, unrounded, wherever the edge lies; null where there is no time."""
    numbers, unit_ns = counts(times)
    edge = -(-edge_us * 1000 // unit_ns)  # rounded up: only whole numbers are compared with it
    if edge > _MOST:
        return pc.greater_equal(numbers, -_MOST - 1)
    return pc.less(numbers, pa.scalar(max(edge, -_MOST - 1), pa.int64()))


def first_misfit(values: pa.Array | pa.ChunkedArray, convert: Callable[[pa.Array], object]) -> int:
    """Index of the first of some values, at least one of which cannot be converted (ValueError).

    Uses bisection: a cast that fails is slow and does not say where it failed.
    """
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(values[low:middle])
            low = middle
        except ValueError:  # or pa.ArrowInvalid, which is one
            high = middle
    return low
