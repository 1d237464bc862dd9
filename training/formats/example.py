"""Rows as `tf.train.Example` messages in protobuf's wire format, without TensorFlow: encoder and decoder.

    Example { Features features = 1 }            Feature { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }
    Features { map<string, Feature> feature = 1 }        each list: { repeated value = 1 }, numbers packed

A null is a feature that is absent. Integers, booleans and times are Int64List; float16 and float32 are FloatList;
strings, bytes and tensors (raw, row-major, little-endian) are BytesList. Ours are written in the schema's order;
any order, unpacked numbers and unknown fields are read. Wire format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

_BYTES, _FLOAT, _INT64 = 1, 2, 3
_NAMES = {_BYTES: "bytes", _FLOAT: "float", _INT64: "int64"}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """Bytes that are no tf.train.Example, or one that does not fit the schema."""


def kind_of(type_: pa.DataType) -> int | None:
    """The field number of the list that holds a column of this type, or None if none can."""
    if pa.types.is_list(type_):
        return kind_of(type_.value_type)
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return _BYTES
    if pa.types.is_float16(type_) or pa.types.is_float32(type_):
        return _FLOAT
    whole = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null, pa.types.is_temporal)
    return _INT64 if any(is_one(type_) for is_one in whole) else None


def encode(table: pa.Table) -> list[bytes]:
    """One message per row; the table's chunks are joined, so a few thousand rows at a time bound the memory."""
    entries = [_entries(field.name, table.column(index)) for index, field in enumerate(table.schema)]
    messages = []
    for parts in zip(*entries, strict=True):
        features = b"".join(parts)
        messages.append(b"\x0a" + _varint(len(features)) + features)
    return messages


def decode(messages: list[memoryview], schema: pa.Schema) -> pa.Table:
    """The rows of messages as a table with exactly the schema's fields; Malformed names row and column."""
    raw: dict[bytes, list[Any]] = {name.encode(): [] for name in schema.names}
    kinds = {field.name.encode(): kind_of(field.type) for field in schema}
    for row, message in enumerate(messages):
        try:
            found = _features(bytes(message), kinds)
        except (IndexError, UnicodeDecodeError) as error:
            raise Malformed(f"row {row} is no tf.train.Example") from error
        except Malformed as error:
            raise Malformed(f"row {row}: {error}") from error
        for name, values in raw.items():
            values.append(found.get(name))
    columns = []
    for field in schema:
        try:
            columns.append(_array(field, raw[field.name.encode()]))
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise Malformed(f"column {field.name!r} does not hold {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


# ---- encoding


def _entries(name: str, column: pa.ChunkedArray) -> list[bytes]:
    """Per row the map entry of one column, b"" for a null."""
    kind = kind_of(column.type)
    assert kind is not None, f"refuse() lets {column.type} through"
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    key = name.encode()
    key = b"\x0a" + _varint(len(key)) + key
    heads: dict[int, bytes] = {}
    entries = []
    for body in _bodies(kind, array):
        if body is None:
            entries.append(b"")
            continue
        head = heads.get(len(body))
        if head is None:
            list_head = bytes([kind << 3 | _LENGTH]) + _varint(len(body))
            feature_head = b"\x12" + _varint(len(list_head) + len(body)) + list_head
            entry_bytes = len(key) + len(feature_head) + len(body)
            head = heads[len(body)] = b"\x0a" + _varint(entry_bytes) + key + feature_head
        entries.append(head + body)
    return entries


def _bodies(kind: int, array: pa.Array) -> Iterator[bytes | None]:
    """Per row the body of its BytesList, FloatList or Int64List; None for a null."""
    there = array.is_valid().to_pylist()
    if pa.types.is_list(array.type):
        offsets = array.offsets.to_numpy()
        # `values` is the child of the whole column, of which this block may be a small part.
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets = offsets - offsets[0]
    else:
        offsets = np.arange(len(array) + 1)
        values = array
    if kind == _BYTES:
        items = (values.cast(pa.binary()) if pa.types.is_string(values.type) else values).to_pylist()
        for row, valid in enumerate(there):
            yield b"".join(map(_item, items[offsets[row] : offsets[row + 1]])) if valid else None
        return
    if kind == _FLOAT:
        packed = values.fill_null(0).cast(pa.float32()).to_numpy(zero_copy_only=False).astype("<f4").tobytes()
        bounds = (offsets * 4).tolist()
    else:
        packed, ends = _varints(_as_int64(values))
        bounds = ends[offsets].tolist()
    for row, valid in enumerate(there):
        yield _item(packed[bounds[row] : bounds[row + 1]], keep_empty=False) if valid else None


def _item(data: bytes, keep_empty: bool = True) -> bytes:
    """Field 1 with these bytes: one value of a BytesList, or packed numbers (left out when there are none)."""
    return b"\x0a" + _varint(len(data)) + data if data or keep_empty else b""


def _as_int64(values: pa.Array) -> np.ndarray:
    if pa.types.is_null(values.type):
        return np.zeros(len(values), np.int64)
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32())
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varints(values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Varints of int64 values (negative ones as two's complement) one after another, and n + 1 offsets into them."""
    unsigned = np.ascontiguousarray(values).view(np.uint64)
    lengths = np.ones(len(unsigned), np.int64)
    for bits in range(7, 64, 7):
        lengths += unsigned >= np.uint64(1 << bits)
    width = int(lengths.max(initial=1))
    at = np.arange(width, dtype=np.uint64)
    groups = ((unsigned[:, None] >> (at * np.uint64(7))) & np.uint64(0x7F)).astype(np.uint8)
    groups |= np.where(at + np.uint64(1) < lengths[:, None].astype(np.uint64), np.uint8(0x80), np.uint8(0))
    return groups[at < lengths[:, None].astype(np.uint64)].tobytes(), np.concatenate([[0], np.cumsum(lengths)])


# ---- decoding


def _features(message: bytes, kinds: dict[bytes, int | None]) -> dict[bytes, Any]:
    """Per wanted feature its raw values: a list of byte strings, or numbers as they stand on the wire, joined."""
    found: dict[bytes, Any] = {}
    for features in _messages(message, 1, 0, len(message)):
        for entry in _messages(message, 1, *features):
            key, feature = b"", (0, 0)
            for number, wire, begin, end in _fields(message, *entry):
                if (number, wire) == (1, _LENGTH):
                    key = message[begin:end]
                elif (number, wire) == (2, _LENGTH):
                    feature = (begin, end)
            if key in kinds and (values := _values(message, *feature, key, kinds[key])) is not None:
                found[key] = values
    return found


def _values(message: bytes, start: int, stop: int, key: bytes, kind: int | None) -> bytes | list[bytes] | None:
    """The values of one Feature; None if it has no list at all, which is how a null may also be written."""
    values: bytes | list[bytes] | None = None
    for number, wire, begin, end in _fields(message, start, stop):
        if number not in _NAMES or wire != _LENGTH:
            continue
        if number != kind:
            raise Malformed(
                f"feature {key.decode()!r} is a {_NAMES[number]} list, the schema asks for {_NAMES.get(kind or 0)}"
            )
        items = [message[a:b] for field, _, a, b in _fields(message, begin, end) if field == 1]
        # Packed or not, numbers joined are the same bytes.
        values = items if number == _BYTES else b"".join(items)
    return values


def _messages(data: bytes, wanted: int, at: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each message that is field `wanted` between two places."""
    for number, wire, start, stop in _fields(data, at, end):
        if (number, wire) == (wanted, _LENGTH):
            yield start, stop


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of each field between two places of a message."""
    while at < end:
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if wire == _LENGTH:
            size, at = _read_varint(data, at)
        elif wire == _VARINT:
            size = _read_varint(data, at)[1] - at
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise Malformed(f"wire type {wire} is unknown")
        if at + size > end:
            raise Malformed("a field is longer than its message")
        yield tag >> 3, wire, at, at + size
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _array(field: pa.Field, raw: list[Any]) -> pa.Array:
    """One column from its raw values per row: bytes of numbers, a list of byte strings, or None for a null."""
    kind = kind_of(field.type)
    listed = pa.types.is_list(field.type)
    item = field.type.value_type if listed else field.type
    absent = np.array([value is None for value in raw], bool)
    if kind == _BYTES:
        counts = np.array([len(value or []) for value in raw], np.int64)
        values = pa.array([one for value in raw for one in value or []], item if item != pa.string() else pa.binary())
        values = values if item != pa.string() else values.cast(pa.string())
    elif kind == _FLOAT:
        sizes = np.array([len(value or b"") for value in raw], np.int64)
        if (sizes % 4).any():
            raise ValueError("a number is cut off")
        counts = sizes // 4
        values = pa.array(np.frombuffer(b"".join(value or b"" for value in raw), "<f4")).cast(item)
    else:
        numbers, counts = _read_varints([value or b"" for value in raw])
        values = _from_int64(numbers, item)
    if listed:
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(absent)).cast(field.type)
    if (counts[~absent] != 1).any():
        row = int(np.flatnonzero(~absent & (counts != 1))[0])
        raise ValueError(f"row {row} has {counts[row]} values where one is meant")
    if not absent.any():
        return values
    where = np.cumsum(~absent) - 1
    return values.take(pa.array(where, mask=absent))


def _from_int64(numbers: np.ndarray, type_: pa.DataType) -> pa.Array:
    array = pa.array(numbers)
    if pa.types.is_null(type_):
        return pa.nulls(len(numbers))
    if pa.types.is_temporal(type_) and type_.bit_width == 32:
        array = array.cast(pa.int32())
    return array.cast(type_)


def _read_varints(rows: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The int64 values of all rows one after another, and how many each row has."""
    data = np.frombuffer(b"".join(rows), np.uint8)
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(len(rows), np.int64)
    last = data < 0x80
    ends = np.flatnonzero(last)
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    if not last[bounds[1:][np.diff(bounds) > 0] - 1].all():
        raise ValueError("a number is cut off")
    before = np.concatenate([[0], np.cumsum(last)])
    starts = np.concatenate([[0], ends[:-1] + 1])
    place = np.arange(len(data)) - np.repeat(starts, ends - starts + 1)
    if place.max() > 9:
        raise ValueError("a number has more than ten bytes")
    parts = (data & 0x7F).astype(np.uint64) << (place * 7).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64), np.diff(before[bounds])
