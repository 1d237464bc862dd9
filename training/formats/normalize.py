"""Brings any Arrow rows to the types that a shard holds: one form for each kind of column, whatever its source.

Large, view and dictionary encodings are undone; numbers in lists of one equal length (nested or not, fixed-size lists
and Arrow's tensor type included) become tensors. `schema.type_text` refuses everything else.

Whether a list column is a tensor depends on all its rows, which need not be in memory at once: `narrow` gives each
batch the narrowest form that holds its own rows, `widen` the form that holds two batches, `finish` the form that shards
have, and `settle` brings rows to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import decoded_column
from data_contracts.errors import UsageError
from data_contracts.quoting import column_shown, type_shown
from training.formats.schema import NUMBERS, tensor_field, tensor_of, type_text

_NUMPY_NAMES = {type_: name for name, type_ in NUMBERS.items()}
TensorType = tuple[str, tuple[int, ...]]


def narrow(table: pa.Table) -> pa.Table:
    """The same rows in the narrowest form that holds them; a list column of nulls alone becomes Arrow's null type.

    Raises: UsageError if two columns have one name, or a tensor is not what its type or metadata says.
    """
    twice = sorted(name for name, times in Counter(table.column_names).items() if times > 1)
    if twice:
        raise UsageError(
            f"Two columns are called {column_shown(repr(twice[0]))}.", remedy="Rename one of them in shards.transform."
        )
    fields, columns = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        field, column = _column(field, column)
        fields.append(field)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def widen(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The form that holds the rows of two narrowed batches of the same columns; TypeError if there is none."""
    return pa.schema([_wider(field, other.field(field.name)) for field in one])


def holds(wide: pa.Field, narrowed: pa.Field) -> bool:
    """Whether rows of a narrowed column fit a column of shards."""
    try:
        return _wider(wide, narrowed).equals(wide, check_metadata=True)
    except TypeError:
        return False


def finish(found: pa.Schema, raw: pa.Schema) -> pa.Schema:
    """The schema of shards from the form that holds all rows and the rows' own types.

    Raises: UsageError for a column of a type that shards cannot hold.
    """
    fields = []
    for at, field in enumerate(found):
        plain = _plain(_storage(raw.field(field.name).type))
        if pa.types.is_null(field.type):
            field = pa.field(field.name, plain)
        type_text(field, at)
        fields.append(field)
    return pa.schema(fields)


def settle(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Narrowed rows in the form of a schema from `widen` or `finish` that holds them."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    columns = [_settled(rows.schema.field(field.name), rows.column(field.name), field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _settled(have: pa.Field, column: pa.ChunkedArray, want: pa.Field) -> pa.ChunkedArray:
    if have.type == want.type:
        return column
    if pa.types.is_null(have.type):
        return pa.chunked_array([pa.nulls(len(column), want.type)])
    tensor = tensor_of(have)
    if tensor is None:
        return column.cast(want.type)
    return pa.chunked_array([_as_lists(chunk, *tensor) for chunk in column.chunks], type=want.type)


def _as_lists(rows: pa.Array, dtype: np.dtype, shape: tuple[int, ...]) -> pa.Array:
    """Rows of a tensor column as their original (nested) lists."""
    there = rows.is_valid().to_numpy(zero_copy_only=False)
    width = rows.type.byte_width
    flat = np.frombuffer(rows.buffers()[1], np.uint8)[rows.offset * width : (rows.offset + len(rows)) * width]
    values: pa.Array = pa.array(flat.reshape(-1, width)[there].reshape(-1).view(dtype))
    for depth, size in reversed(list(enumerate(shape))):
        if depth:
            values = pa.ListArray.from_arrays(np.arange(0, len(values) + 1, size, dtype=np.int32), values)
    offsets = np.concatenate([[0], np.cumsum(there * shape[0])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(~there))


def _wider(one: pa.Field, other: pa.Field) -> pa.Field:
    if one.equals(other, check_metadata=True) or pa.types.is_null(other.type):
        return one
    if pa.types.is_null(one.type):
        return other
    lists = [_list_type(field) for field in (one, other)]
    if lists[0] is None or lists[0] != lists[1]:
        raise TypeError(f"column {column_shown(repr(one.name))} is {type_shown(one.type)} and {type_shown(other.type)}")
    return pa.field(one.name, lists[0])


def _list_type(field: pa.Field) -> pa.DataType | None:
    tensor = tensor_of(field)
    if tensor is None:
        return field.type if pa.types.is_list(field.type) else None
    type_ = NUMBERS[tensor[0].name]
    for _ in tensor[1]:
        type_ = pa.list_(type_)
    return type_


def _column(field: pa.Field, column: pa.ChunkedArray) -> tuple[pa.Field, pa.ChunkedArray]:
    tensor = tensor_of(field)
    if tensor is not None:
        dtype, shape = tensor
        kept = tensor_field(field.name, dtype.name, shape)
        if kept.type != field.type:
            raise UsageError(
                f"Column {column_shown(repr(field.name))} says shape {list(shape)} of {dtype.name}, but its rows have "
                f"{field.type.byte_width} bytes.",
                remedy="Correct the metadata that shards.transform gives the field.",
            )
        return kept, column
    type_ = field.type
    if isinstance(type_, pa.FixedShapeTensorType):
        return _arrow_tensor(field, column)
    if isinstance(type_, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=type_.storage_type)
        return _column(pa.field(field.name, type_.storage_type), column)
    if _is_list(type_):
        if column.null_count == len(column):
            return pa.field(field.name, pa.null()), pa.chunked_array([pa.nulls(len(column))])
        tensors = [_tensor_chunk(chunk) for chunk in column.chunks if len(chunk) > chunk.null_count]
        if tensors[0] is not None and len({one and one[0] for one in tensors}) == 1:
            return _assemble(field.name, tensors[0][0], column, [one[1] for one in tensors if one is not None])
    plain = _plain(type_)
    try:
        return pa.field(field.name, plain), column if plain == type_ else decoded_column(column).cast(plain)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"Column {column_shown(repr(field.name))} has a value that {plain}, its type in shards, cannot hold.",
            remedy="Correct it in the data or in shards.transform.",
        ) from error


def _is_list(type_: pa.DataType) -> bool:
    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)


def _storage(type_: pa.DataType) -> pa.DataType:
    return _storage(type_.storage_type) if isinstance(type_, pa.BaseExtensionType) else type_


def _plain(type_: pa.DataType) -> pa.DataType:
    if _is_list(type_):
        return pa.list_(_plain(type_.value_type))
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_date64(type_):
        return pa.timestamp("ms")
    # Parquet has no whole seconds: it would return them as milliseconds.
    if pa.types.is_timestamp(type_) and type_.unit == "s":
        return pa.timestamp("ms", type_.tz)
    if pa.types.is_time32(type_):
        return pa.time32("ms")
    if pa.types.is_decimal32(type_) or pa.types.is_decimal64(type_):
        return pa.decimal128(type_.precision, type_.scale)
    return type_


def _tensor_chunk(lists: pa.Array) -> tuple[TensorType, NDArray[Any]] | None:
    """Type and shape of the rows that are not null, and their values as one array; None if they are not tensors."""
    shape: list[int] = []
    values = lists
    while _is_list(values.type):
        if shape and values.null_count:
            return None
        spread = pc.min_max(pc.list_value_length(values)).as_py()
        if not spread["min"] or spread["min"] != spread["max"]:
            return None
        shape.append(int(spread["min"]))
        values = values.flatten()
    if values.type not in _NUMPY_NAMES or values.null_count:
        return None
    flat = values.to_numpy(zero_copy_only=False)
    return (_NUMPY_NAMES[values.type], tuple(shape)), flat


def _arrow_tensor(field: pa.Field, column: pa.ChunkedArray) -> tuple[pa.Field, pa.ChunkedArray]:
    type_ = field.type
    if type_.permutation is not None and list(type_.permutation) != sorted(type_.permutation):
        raise UsageError(
            f"Column {column_shown(repr(field.name))} is a tensor whose dimensions are permuted.",
            remedy="Return it row-major from shards.transform.",
        )
    storage = pa.chunked_array([chunk.storage for chunk in column.chunks], type=type_.storage_type)
    found = [_tensor_chunk(chunk) for chunk in storage.chunks if len(chunk) > chunk.null_count]
    if type_.value_type not in _NUMPY_NAMES or None in found:
        raise UsageError(
            f"Column {column_shown(repr(field.name))} has the type {type_} with values that are null or not numbers.",
            remedy="Return plain numbers from shards.transform.",
        )
    kind = (_NUMPY_NAMES[type_.value_type], tuple(type_.shape))
    return _assemble(field.name, kind, storage, [one[1] for one in found if one is not None])


def _assemble(
    name: str, kind: TensorType, column: pa.ChunkedArray, values: Sequence[NDArray[Any]]
) -> tuple[pa.Field, pa.ChunkedArray]:
    """A tensor column from the values of its chunks; a chunk of nulls has no values."""
    field = tensor_field(name, *kind)
    width = field.type.byte_width
    remaining = iter(values)
    chunks = []
    for chunk in column.chunks:
        there = chunk.is_valid().to_numpy(zero_copy_only=False)
        rows = np.zeros((len(chunk), width), np.uint8)
        if there.any():
            flat = np.ascontiguousarray(next(remaining), np.dtype(kind[0]).newbyteorder("<"))
            rows[there] = flat.view(np.uint8).reshape(-1, width)
        validity = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
        chunks.append(pa.Array.from_buffers(field.type, len(chunk), [validity, pa.py_buffer(rows)]))
    return field, pa.chunked_array(chunks, type=field.type)
