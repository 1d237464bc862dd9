"""Tells what columns of an Arrow type hold, and gives their values in a plain type."""

from __future__ import annotations

import pyarrow as pa


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
