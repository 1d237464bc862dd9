"""TFRecord shards: `tf.train.Example` messages, framed as TensorFlow frames them.

A record is the message's length (uint64), the masked CRC-32C of those 8 bytes (uint32), the message, and the masked
CRC-32C of the message (uint32), all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from data_contracts.errors import CorruptError, UsageError
from training.formats import example
from training.formats.schema import pick

SUFFIX = ".tfrecord"

# Rows encoded or decoded at a time: bounds the memory beside the table itself.
BLOCK_ROWS = 8_192
_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")


def refuse(table: pa.Table) -> None:
    """Raise UsageError, naming column and reason, if TFRecord cannot hold these rows as they are."""
    for field, column in zip(table.schema, table.columns, strict=True):
        reason, remedy = _obstacle(field.type, column)
        if reason:
            raise UsageError(
                f"Column {field.name!r} cannot be stored as TFRecord: {reason}.",
                remedy=f"{remedy} in shards.transform, or set shards.format: parquet.",
            )


def _obstacle(type_: pa.DataType, column: pa.ChunkedArray) -> tuple[str, str]:
    """Why a column cannot be stored and what to do about it, or two empty strings."""
    if pa.types.is_list(type_):
        values = column.combine_chunks().flatten() if column.num_chunks else column
        if values.null_count:
            return "it holds nulls inside lists", "Fill them"
        return _obstacle(type_.value_type, values)
    if pa.types.is_float64(type_):
        return "it is float64, and a tf.train.Example has 32-bit floats only", "Cast it to float32"
    if type_ == pa.uint64() and (pc.max(column).as_py() or 0) >= 2**63:
        return "it holds integers of 2^63 and more, and a tf.train.Example has signed 64-bit ones", "Cast it"
    if example.kind_of(type_) is None:
        return f"a tf.train.Example has nothing for {type_}", "Convert it"
    return "", ""


def write_shard(table: pa.Table, path: Path) -> None:
    """Write normalised rows to a new file; the same rows give the same bytes however they are chunked."""
    with path.open("wb") as file:
        for start in range(0, table.num_rows, BLOCK_ROWS):
            for message in example.encode(table.slice(start, BLOCK_ROWS)):
                length = struct.pack("<Q", len(message))
                file.write(b"".join((length, _TAIL.pack(_masked(length)), message, _TAIL.pack(_masked(message)))))


def read_shard(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, in order; both checksums of every record are checked.

    Args:
        schema: the dataset's; the result has exactly its fields, or those that `columns` names, in their order.

    Raises:
        CorruptError: a checksum, a length or a message is wrong, or a feature is not what the schema says.
        UsageError: `columns` names one that the schema does not have.
    """
    wanted = pick(schema, columns)
    blocks, block, done = [], [], 0
    for message in _records(path):
        block.append(message)
        if len(block) == BLOCK_ROWS:
            blocks.append(_decode(path, block, wanted, done))
            done += len(block)
            block = []
    if block or not blocks:
        blocks.append(_decode(path, block, wanted, done))
    return pa.concat_tables(blocks)


def _records(path: Path) -> Iterator[memoryview]:
    """The messages of a file, checked."""
    data = memoryview(path.read_bytes())
    at = row = 0
    while at < len(data):
        where = f"Shard {path.name}, record {row} at byte {at}"
        if at + _HEAD.size > len(data):
            raise CorruptError(f"{where}: the file ends within a record.")
        length, checksum = _HEAD.unpack_from(data, at)
        if checksum != _masked(data[at : at + 8]):
            raise CorruptError(f"{where}: the checksum of its length is wrong.")
        start = at + _HEAD.size
        at = start + length + _TAIL.size
        if at > len(data):
            raise CorruptError(f"{where}: the file ends within a record.")
        message = data[start : start + length]
        if _TAIL.unpack_from(data, start + length)[0] != _masked(message):
            raise CorruptError(f"{where}: its checksum is wrong.")
        yield message
        row += 1


def _decode(path: Path, block: list[memoryview], schema: pa.Schema, first_row: int) -> pa.Table:
    try:
        return example.decode(block, schema)
    except example.Malformed as error:
        raise CorruptError(
            f"Shard {path.name}, counting from record {first_row}: {error}, although its checksums are right.",
            remedy="It was not written for this schema; shard the data again.",
        ) from error


def _masked(data: bytes | memoryview) -> int:
    """CRC-32C as TFRecord masks it: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
