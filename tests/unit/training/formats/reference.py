"""Messages and records by the rules of the wire format, value by value: what the kernels must write byte by byte."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from training.formats.tfrecord import kind_of

BYTES, FLOAT, INT64 = 1, 2, 3


def record(message: bytes) -> bytes:
    """A message framed as TFRecord frames it."""
    length = struct.pack("<Q", len(message))
    return length + _masked(length) + message + _masked(message)


def messages(table: pa.Table) -> list[bytes]:
    """One message per row of a normalised table, features in the schema's order, nulls left out."""
    columns = [plain(column) for column in table.columns]
    kinds = [kind_of(column.type) for column in table.schema]
    return [
        field(
            1,
            b"".join(
                entry(name, kind, column[row])
                for name, kind, column in zip(table.column_names, kinds, columns, strict=True)
                if column[row] is not None
            ),
        )
        for row in range(table.num_rows)
    ]


def varint(value: int) -> bytes:
    """A number in base 128, least first; a negative one as 64 bits."""
    value %= 2**64
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Per row None or a list of byte strings, integers or floats."""
    if pa.types.is_list(column.type):
        return [_items(one.values) if one.is_valid else None for one in column]
    values = iter(_items(column.drop_null().combine_chunks()))
    return [[next(values)] if there else None for there in column.is_valid().to_pylist()]


def _items(array: pa.Array) -> list[Any]:
    type_ = array.type
    if pa.types.is_string(type_):
        return [one.encode() for one in array.to_pylist()]
    if pa.types.is_temporal(type_):
        return array.view(pa.int64() if type_.bit_width == 64 else pa.int32()).to_pylist()
    if pa.types.is_floating(type_):
        return pc.cast(array, pa.float32()).to_numpy(zero_copy_only=False).astype(np.float32).tolist()
    return array.to_pylist()


def list_of(kind: int, values: list[Any]) -> bytes:
    """A BytesList, FloatList or Int64List."""
    if kind == BYTES:
        return b"".join(field(1, value) for value in values)
    if not values:
        return b""
    if kind == FLOAT:
        return field(1, struct.pack(f"<{len(values)}f", *values))
    return field(1, b"".join(varint(int(value)) for value in values))


def entry(name: str, kind: int, values: list[Any], name_last: bool = False) -> bytes:
    """One feature with its name, which may also stand behind it."""
    parts = [field(1, name.encode()), field(2, field(kind, list_of(kind, values)))]
    return field(1, b"".join(reversed(parts) if name_last else parts))


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return bytes([number * 8 + 2]) + varint(len(content)) + content


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32)
