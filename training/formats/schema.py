"""The types that a shard can hold, their text form (`int64`, `string`, `list<int32>`, `tensor<uint8>[8,8]`), and any
Arrow rows brought to these types.

A tensor is stored as fixed-size binary (row-major, little-endian) with its shape and dtype in the field's metadata,
because Parquet reads that 19 times faster than a list of small integers. The text form is complete, so a dataset's
schema is a list of names with such texts (`schema.json`).

There is one form for each kind of column, whatever its source. Large, view and dictionary encodings are undone; numbers
in lists of one equal length (nested or not, fixed-size lists and Arrow's tensor type included) become tensors.
`type_text` refuses everything else. Whether a list column is a tensor depends on all its rows, which need not be in
memory at once: `narrow` gives each batch the narrowest form that holds its own rows, `widen` the form that holds two
batches, `finish` the form that shards have, and `conform_rows` brings rows to it.

`Facts` are gathered batch by batch and merged, before the first shard is written: the form of each column and the bytes
of each group's values.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.arrow_rows import decoded_column
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.quoting import absent_shown, column_shown, text_of, type_shown

FILE = "schema.json"
VERSION = 1

NUMBERS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
_PLAIN: dict[str, pa.DataType] = {
    **NUMBERS,
    "string": pa.string(),
    "bytes": pa.binary(),
    "date32": pa.date32(),
    "null": pa.null(),
    "time32[ms]": pa.time32("ms"),
    **{f"time64[{unit}]": pa.time64(unit) for unit in ("us", "ns")},
    **{f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("ms", "us", "ns")},
    **{f"duration[{unit}]": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}
_TEXTS = {type_: text for text, type_ in _PLAIN.items()}
_TENSOR = re.compile(r"tensor<(\w+)>\[([\d,]+)\]")
_ZONED = re.compile(r"timestamp\[(ms|us|ns),(.+)\]")
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_NUMPY_NAMES = {type_: name for name, type_ in NUMBERS.items()}
TensorType = tuple[str, tuple[int, ...]]


def tensor_field(name: str, dtype: str, shape: tuple[int, ...]) -> pa.Field:
    """The field of a tensor column: one row is `shape` values of the NumPy type `dtype`."""
    width = math.prod(shape) * np.dtype(dtype).itemsize
    metadata = {b"shape": json.dumps(shape, separators=(",", ":")).encode(), b"dtype": dtype.encode()}
    return pa.field(name, pa.binary(width), metadata=metadata)


def tensor_of(field: pa.Field) -> tuple[np.dtype, tuple[int, ...]] | None:
    """NumPy type and shape of one row of a tensor column; None for any other column."""
    metadata = field.metadata or {}
    if not pa.types.is_fixed_size_binary(field.type) or b"shape" not in metadata or b"dtype" not in metadata:
        return None
    return np.dtype(metadata[b"dtype"].decode()), tuple(json.loads(metadata[b"shape"]))


def type_text(field: pa.Field, at: int | None = None) -> str:
    """The text form of the type of a column, the one at `at`; UsageError if a shard cannot hold it."""
    tensor = tensor_of(field)
    if tensor is not None:
        dtype, shape = tensor
        return f"tensor<{dtype.name}>[{','.join(map(str, shape))}]"
    text = _text(field.type)
    if text is None:
        raise UsageError(
            f"Column {column_shown(repr(field.name), at)} has the type {type_shown(field.type)}, which a shard "
            "cannot hold.",
            remedy="Flatten or drop it in shards.transform.",
        )
    return text


def field_of(name: str, text: str) -> pa.Field:
    """The field that a text of `type_text` describes; ValueError for any other text."""
    if match := _TENSOR.fullmatch(text):
        return tensor_field(name, match[1], tuple(int(size) for size in match[2].split(",")))
    return pa.field(name, _parse(text))


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """Name → text form of its type, in the schema's order."""
    return {field.name: type_text(field, at) for at, field in enumerate(schema)}


def to_json(schema: pa.Schema) -> dict[str, object]:
    """The schema as JSON, for `schema.json` and the manifest's settings."""
    columns = [{"name": name, "type": text} for name, text in columns_of(schema).items()]
    return {"schema_version": VERSION, "columns": columns}


def from_json(value: Mapping[str, Any]) -> pa.Schema:
    """The schema that `to_json` wrote; UsageError if its version is newer, CorruptError if it is not a schema."""
    if value.get("schema_version", VERSION) > VERSION:
        raise UsageError(
            f"This dataset's schema has version {value['schema_version']}, newer than the {VERSION} read here.",
            remedy="Upgrade Trainwright.",
        )
    try:
        return pa.schema([field_of(column["name"], column["type"]) for column in value["columns"]])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{FILE} describes no schema: {text_of(error)}.") from error


def read_schema(folder: Path) -> pa.Schema:
    """The schema of a dataset whose files lie in `folder`."""
    return from_json(parse_json(read_plain(folder / FILE)))


def pick(schema: pa.Schema, columns: list[str] | None) -> pa.Schema:
    """The part of the schema that `columns` names, in their order (all if None); UsageError for an unknown name."""
    if columns is None:
        return schema
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise UsageError(f"The dataset has no column {absent_shown(name, schema.names)}.")
    return pa.schema([schema.field(name) for name in columns])


def _text(type_: pa.DataType) -> str | None:
    if pa.types.is_list(type_) and type_.value_type in _TEXTS and not pa.types.is_null(type_.value_type):
        return f"list<{_TEXTS[type_.value_type]}>"
    if pa.types.is_timestamp(type_) and type_.tz is not None and type_.unit != "s":
        return f"timestamp[{type_.unit},{type_.tz}]"
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _TEXTS.get(type_)


def _parse(text: str) -> pa.DataType:
    if text in _PLAIN:
        return _PLAIN[text]
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(_PLAIN[text[5:-1]])
    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    raise ValueError(f"unknown column type {text!r}")


def narrow(table: pa.Table) -> pa.Table:
    """The same rows in the narrowest form that holds them; a list column of nulls alone becomes Arrow's null type.

    Raises: UsageError if two columns have one name, or a tensor is not what its type or metadata says.
    """
    twice = sorted(name for name, times in Counter(table.column_names).items() if times > 1)
    if twice:
        raise UsageError(
            f"Two columns are called {column_shown(repr(twice[0]))}.", remedy="Rename one of them in shards.transform."
        )
    narrowed = [_column(field, column) for field, column in zip(table.schema, table.columns, strict=True)]
    return pa.Table.from_arrays([column for _, column in narrowed], schema=pa.schema([field for field, _ in narrowed]))


def widen(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The form that holds the rows of two narrowed batches of the same columns; TypeError if there is none."""
    return pa.schema([_wider(field, right.field(field.name)) for field in left])


def holds(wide: pa.Field, narrowed: pa.Field) -> bool:
    """Whether rows of a narrowed column fit a column of shards."""
    try:
        return _wider(wide, narrowed).equals(wide, check_metadata=True)
    except TypeError:
        return False


def finish(widened: pa.Schema, raw: pa.Schema) -> pa.Schema:
    """The schema of shards from the form that holds all rows and the rows' own types.

    Raises: UsageError for a column of a type that shards cannot hold.
    """
    fields = []
    for at, field in enumerate(widened):
        plain = _plain(_storage(raw.field(field.name).type))
        if pa.types.is_null(field.type):
            field = pa.field(field.name, plain)
        type_text(field, at)
        fields.append(field)
    return pa.schema(fields)


def conform_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Narrowed rows in the form of a schema from `widen` or `finish` that holds them."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    columns = [_conformed(rows.schema.field(field.name), rows.column(field.name), field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _conformed(have: pa.Field, column: pa.ChunkedArray, want: pa.Field) -> pa.ChunkedArray:
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


def _wider(left: pa.Field, right: pa.Field) -> pa.Field:
    if left.equals(right, check_metadata=True) or pa.types.is_null(right.type):
        return left
    if pa.types.is_null(left.type):
        return right
    lists = [_list_type(field) for field in (left, right)]
    if lists[0] is None or lists[0] != lists[1]:
        raise TypeError(
            f"column {column_shown(repr(left.name))} is {type_shown(left.type)} and {type_shown(right.type)}"
        )
    return pa.field(left.name, lists[0])


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


class Mismatch(ValueError):
    """Two batches do not have the same columns and types."""


@dataclass
class Size:
    """Rows of a group and, per column, how many values its lists have and the bytes of its texts."""

    rows: int = 0
    values: dict[str, int] = dataclasses.field(default_factory=dict)
    text_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, other: Size) -> None:
        """Add another size to this one."""
        self.rows += other.rows
        for mine, theirs in ((self.values, other.values), (self.text_bytes, other.text_bytes)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count

    def logical_bytes(self, schema: pa.Schema) -> int:
        """Bytes of these rows' values under the shards' schema, whatever buffers hold them."""
        return sum(self._column_bytes(field) for field in schema)

    def _column_bytes(self, field: pa.Field) -> int:
        type_ = field.type
        if _is_text(type_):
            return self.text_bytes.get(field.name, 0)
        if pa.types.is_list(type_):
            item = type_.value_type
            values = self.values.get(field.name, 0)
            inside = self.text_bytes.get(field.name, 0) if _is_text(item) else values * item.bit_width // 8
            return 4 * self.rows + inside
        return 0 if pa.types.is_null(type_) else self.rows * type_.bit_width // 8


@dataclass
class Facts:
    """Facts about the rows of some batches.

    Attributes:
        raw: their own types, unified; None before the first batch.
        form: the narrowest form that holds them all.
        sizes: per group (a split).
    """

    raw: pa.Schema | None = None
    form: pa.Schema | None = None
    sizes: dict[str, Size] = dataclasses.field(default_factory=dict)

    def look(self, groups: Sequence[str], of_row: NDArray[np.int16], rows: pa.Table) -> pa.Table:
        """Record some rows and return them narrowed; Mismatch if their columns differ from earlier rows'.

        Args:
            of_row: each row's index into `groups`, (rows,).
        """
        narrowed = narrow(rows)
        counts = np.bincount(of_row, minlength=len(groups)).tolist()
        one = Facts(rows.schema.remove_metadata(), narrowed.schema, dict(zip(groups, map(Size, counts), strict=True)))
        for column_field, column in zip(narrowed.schema, narrowed.columns, strict=True):
            one._look_at(column_field, column, of_row)
        self.merge(one)
        return narrowed

    def merge(self, other: Facts) -> None:
        """Add the facts about later rows."""
        if other.raw is None or other.form is None:
            return
        if self.raw is None or self.form is None:
            self.raw, self.form = other.raw, other.form
        elif not (self.raw.equals(other.raw) and self.form.equals(other.form, check_metadata=True)):
            self.raw = _unified(self.raw, other.raw)
            try:
                self.form = widen(self.form, other.form)
            except TypeError as error:
                raise Mismatch(str(error)) from error
        for group, size in other.sizes.items():
            self.sizes.setdefault(group, Size()).add(size)

    def schema(self) -> pa.Schema:
        """The schema of shards; UsageError for a column that shards cannot hold."""
        return finish(self.form, self.raw)

    def _look_at(self, column_field: pa.Field, column: pa.ChunkedArray, of_row: NDArray[np.int16]) -> None:
        name, type_ = column_field.name, column_field.type
        tensor = tensor_of(column_field)
        values: pa.ChunkedArray = column
        of_value = of_row
        if tensor is not None:
            valid = column.is_valid().to_numpy()
            for size, rows in self._sums(of_row, valid):
                size.values[name] = rows * math.prod(tensor[1])
            return
        if pa.types.is_list(type_):
            values = pc.list_flatten(column)
            lengths = pc.list_value_length(column).fill_null(0).to_numpy()
            for size, count in self._sums(of_row, lengths):
                size.values[name] = count
            if _is_text(values.type):
                of_value = np.repeat(of_row, lengths)
        if _is_text(values.type):
            for size, count in self._sums(of_value, pc.binary_length(values).fill_null(0).to_numpy()):
                size.text_bytes[name] = count

    def _sums(self, of_value: NDArray[np.int16], amounts: NDArray[Any]) -> Iterator[tuple[Size, int]]:
        """Each group's size, in the order of their indices, and the sum of its amounts, which are whole numbers."""
        sums = np.bincount(of_value, amounts, minlength=len(self.sizes))
        return zip(self.sizes.values(), sums.astype(np.int64).tolist(), strict=True)


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_binary(type_)


def _unified(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    both = {*left.names} & {*right.names}
    for name in [*right.names, *left.names]:
        if name not in both:
            raise Mismatch(f"column {column_shown(repr(name))} is not in all of them")
    try:
        return pa.unify_schemas([left, right])
    except pa.ArrowTypeError as error:
        raise Mismatch(text_of(error).splitlines()[0].rstrip(".")) from error
