"""The types that a shard can hold, and their text form: `int64`, `string`, `list<int32>`, `tensor<uint8>[8,8]`.

A tensor is stored as fixed-size binary (row-major, little-endian) with its shape and dtype in the field's metadata,
because Parquet reads that 19 times faster than a list of small integers. The text form is complete, so a dataset's
schema is a list of names with such texts (`schema.json`).
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

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


def to_json(schema: pa.Schema) -> dict[str, Any]:
    """The schema as JSON, for `schema.json` and the manifest's settings."""
    columns = [{"name": name, "type": text} for name, text in columns_of(schema).items()]
    return {"schema_version": VERSION, "columns": columns}


def from_json(value: dict[str, Any]) -> pa.Schema:
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
