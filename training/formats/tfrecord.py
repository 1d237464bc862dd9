"""TFRecord shards: `tf.train.Example` messages, framed as TensorFlow frames them.

A record is the message's length (uint64), the masked CRC-32C of those 8 bytes (uint32), the message, and the masked
CRC-32C of the message (uint32), all little-endian.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.errors import CorruptError, UsageError
from data_contracts.quoting import column_shown, type_shown
from training.formats import Shard, example, example_decoder, example_encoder
from training.formats.kernels import read
from training.formats.kernels.native import HEAD_BYTES, SPARE_BYTES
from training.formats.schema import pick

SUFFIX = ".tfrecord"

# The most that is encoded or decoded at a time: bounds the memory beside the table itself. One row may be larger.
BLOCK_ROWS = 8_192
BLOCK_BYTES = 64 * 2**20
# Bytes written or read at a time: few enough to stay in the processor's cache.
WRITE_BYTES = 2**20
READ_BYTES = 2**21

_WRONG = {
    read.LENGTH_CHECKSUM: "the checksum of its length is wrong",
    read.CHECKSUM: "its checksum is wrong",
}


def refuse(table: pa.Table) -> None:
    """Raise UsageError, naming column and reason, if TFRecord cannot hold these rows as they are."""
    for field, column in zip(table.schema, table.columns, strict=True):
        reason, remedy = _obstacle(field.type, column)
        if reason:
            raise UsageError(
                f"Column {column_shown(repr(field.name))} cannot be stored as TFRecord: {reason}.",
                remedy=f"{remedy} in shards.transform, or set shards.format: parquet.",
            )


def _obstacle(type_: pa.DataType, column: pa.ChunkedArray) -> tuple[str, str]:
    """Why a column cannot be stored and the remedy, or two empty strings."""
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
        return f"a tf.train.Example has nothing for {type_shown(type_)}", "Convert it"
    return "", ""


def encode(table: pa.Table) -> Iterator[memoryview]:
    """The bytes of a file with normalised rows; the same rows give the same bytes however they are chunked."""
    for block in _blocks(table):
        for framed in example_encoder.encode(block, WRITE_BYTES):
            yield framed.data.data


def write_shard(table: pa.Table, path: Path) -> None:
    """Write what `encode` gives to a new file."""
    with path.open("wb") as file:
        file.writelines(encode(table))


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    """The rows, at most BLOCK_ROWS and BLOCK_BYTES at a time, or one row that is larger."""
    if table.num_rows > 1 and table.nbytes > BLOCK_BYTES:
        half = table.num_rows // 2
        yield from _blocks(table.slice(0, half))
        yield from _blocks(table.slice(half))
    else:
        for start in range(0, table.num_rows, BLOCK_ROWS):
            yield table.slice(start, BLOCK_ROWS)


def read_shard(path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, in order; both checksums of every record are checked.

    Args:
        schema: the dataset's; the result has exactly its fields, or those that `columns` names, in their order.

    Raises:
        CorruptError: a checksum, a length or a message is wrong, or a feature is not what the schema says.
        UsageError: `columns` names a column that the schema does not have.
    """
    blocks = list(read_blocks(path, schema, columns))
    return pa.concat_tables(blocks) if blocks else pick(schema, columns).empty_table()


def read_blocks(path: Shard, schema: pa.Schema, columns: list[str] | None = None, start: int = 0) -> Iterator[pa.Table]:
    """The rows of `read_shard` from row `start` on, at most BLOCK_ROWS and READ_BYTES at a time.

    Of earlier records only the checksums are checked.
    """
    wanted = pick(schema, columns)
    for framed, row, at in _records(path):
        if row + len(framed.starts) <= start:
            continue
        try:
            yield example_decoder.decode(framed, schema, wanted).slice(max(0, start - row))
        except example.Malformed as error:
            place = at + framed.starts[error.row] - framed.starts[0]
            raise CorruptError(
                f"Shard {path.name}, record {row + error.row} at byte {place}: {error}, although its checksums fit.",
                remedy="It was not written for this schema; shard the data again.",
            ) from error


def num_rows(path: Path) -> int:
    """The number of records in a file; checks the checksums of every record."""
    return sum(len(framed.starts) for framed, _, _ in _records(path))


def _records(path: Shard) -> Iterator[tuple[example.Framed, int, int]]:
    """The records of a file, checked, a block at a time, with the number and the place of the block's first.

    The buffer is reused for the next block.
    """
    starts, stops = np.empty(BLOCK_ROWS, np.int64), np.empty(BLOCK_ROWS, np.int64)
    row = place = 0
    with path.open("rb", buffering=0) if isinstance(path, Path) else path.open() as file:
        unread = file.seek(0, os.SEEK_END)
        file.seek(0)
        data = np.empty(min(unread, READ_BYTES) + SPARE_BYTES, np.uint8)
        at = end = 0  # data[at:end] is read and not yet checked; it lies at `place` in the file
        while True:
            count, behind, code, size = read.records(data, at, end, starts, stops)
            if count:
                yield example.Framed(data, starts[:count], stops[:count]), row, place
            row, place, at = row + count, place + behind - at, behind
            where = f"Shard {path.name}, record {row} at byte {place}"
            if code != read.OK:
                raise CorruptError(f"{where}: {_WRONG[code]}.")
            if count == BLOCK_ROWS:
                continue
            if not unread and at == end:
                return
            if not unread or size > end - at + unread:
                raise CorruptError(f"{where}: the file ends within a record.")
            rest = data[at:end]
            needed = max(size, HEAD_BYTES) + SPARE_BYTES
            if needed > len(data):
                data = np.empty(needed, np.uint8)
            data[: len(rest)] = rest
            at, end = 0, len(rest)
            got = file.readinto(data[end:-SPARE_BYTES].data)
            end, unread = end + got, unread - got if got else 0
