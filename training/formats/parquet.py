"""Parquet shards, which pandas, DuckDB and Polars read directly; tensors are fixed-size binary."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.errors import CorruptError
from data_contracts.quoting import text_of
from training.formats import Shard
from training.formats.schema import pick

SUFFIX = ".parquet"

# The largest row group, which is the smallest unit of reading; fixed, so that a file does not depend on the machine.
# The bytes count only where a row has more than 256 of them.
ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 16 * 2**20
_CHUNK_BYTES = 2**22


def refuse(table: pa.Table) -> None:
    """Refuse nothing: Parquet holds every type that a shard can have."""


class _Written(io.RawIOBase):
    """Holds what was written to it until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._chunks.append(memoryview(data))
        return len(data)

    def taken(self) -> list[memoryview]:
        taken, self._chunks = self._chunks, []
        return taken


def encode(table: pa.Table) -> Iterator[memoryview]:
    """The bytes of a file with normalised rows; the same rows give the same bytes however they are chunked."""
    schema = table.schema.remove_metadata()
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    rows, written = _row_group_rows(table), _Written()
    # A page's header has a few bytes, so chunks are joined before they reach Python.
    with pa.output_stream(written, buffer_size=_CHUNK_BYTES) as stream:
        # Uncompressed: training waits for reading, and a dictionary pays only where strings repeat.
        with pq.ParquetWriter(stream, schema, compression="none", use_dictionary=texts or False, version="2.6") as file:
            for start in range(0, table.num_rows, rows):
                # Pages of fixed-size binary end where chunks end, so the chunks are joined first.
                group = table.slice(start, rows).combine_chunks()
                file.write_table(group.replace_schema_metadata(None), row_group_size=rows)
                yield from written.taken()
        stream.flush()
        yield from written.taken()


def _row_group_rows(table: pa.Table) -> int:
    size = sum(_value_bytes(column) for column in table.columns)
    return max(1, min(ROW_GROUP_ROWS, table.num_rows * ROW_GROUP_BYTES // max(1, size)))


def _value_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of a column's values, whatever chunks and buffers hold them."""
    type_ = column.type
    if pa.types.is_list(type_):
        return _value_bytes(pc.list_flatten(column))
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    return 0 if pa.types.is_null(type_) else len(column) * type_.bit_width // 8


def read_blocks(path: Shard, schema: pa.Schema, columns: list[str] | None = None, start: int = 0) -> Iterator[pa.Table]:
    """The rows of a file from row `start` on, in order, a row group at a time; earlier groups are not read.

    Args:
        schema: the dataset's; the result has exactly its fields, or those that `columns` names, in their order.

    Raises:
        CorruptError: the file is not a Parquet file, or holds other columns or types than the schema says.
        UsageError: `columns` names a column that the schema does not have.
    """
    wanted = pick(schema, columns)
    with _opened(path) as file:
        _check(path, file.schema_arrow, wanted)
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if start < rows:
                table = file.read_row_group(group, columns=wanted.names)
                columns_in_order = [table.column(name) for name in wanted.names]
                yield pa.Table.from_arrays(columns_in_order, schema=wanted).slice(start)
            start = max(0, start - rows)


@contextmanager
def _opened(path: Shard) -> Iterator[pq.ParquetFile]:
    try:
        # ParquetFile, because read_table would take `name=value` parts of the path for columns.
        if isinstance(path, Path):
            with pq.ParquetFile(path, memory_map=True) as file:
                yield _bounded(path, file)
        else:
            with path.open() as reader, pq.ParquetFile(pa.PythonFile(reader, mode="r")) as file:
                yield _bounded(path, file)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptError(f"Shard {path.name} cannot be read as Parquet: {text_of(error)}.") from error


def _bounded(path: Shard, file: pq.ParquetFile) -> pq.ParquetFile:
    """The file, if its row groups are of our size: a few bytes may stand for very many rows."""
    metadata = file.metadata
    most = max((metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)), default=0)
    if most > ROW_GROUP_ROWS:
        raise CorruptError(f"Shard {path.name} has {most:,} rows in a row group, and ours have {ROW_GROUP_ROWS:,}.")
    return file


def _check(path: Shard, stored: pa.Schema, expected: pa.Schema) -> None:
    there = set(stored.names)
    for field in expected:
        if field.name not in there:
            raise CorruptError(f"Shard {path.name} has no column {field.name!r}, which its dataset's schema names.")
        stored_type = stored.field(field.name).type
        if stored_type != field.type:
            raise CorruptError(
                f"Shard {path.name} holds {field.name!r} as {stored_type}, but its dataset's schema says {field.type}."
            )


class TableFile:
    """Collects tables of one schema and writes their rows to a Parquet file, in groups of `group_rows`.

    Attributes:
        schema: of the first table.
        refused: why there is no file; "" if there is one.
    """

    def __init__(self, path: Path, group_rows: int = 2**16) -> None:
        self.path = path
        self.schema: pa.Schema | None = None
        self.refused = ""
        self._group_rows = group_rows
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def append(self, table: pa.Table) -> bool:
        """Append the rows; returns False, and appends nothing, if the schema is not that of the first table."""
        if self.schema is not None and table.schema != self.schema:
            return False
        self.schema = table.schema
        self._waiting.append(table)
        self._rows += table.num_rows
        while self._rows >= self._group_rows:
            self._write(self._group_rows)
        return True

    def refuse(self, reason: str) -> None:
        """There is no file for this reason; the first one counts. Forget the rows that are not written yet."""
        self.refused = self.refused or reason
        self._waiting.clear()
        self._rows = 0

    def close(self) -> bool:
        """Complete the file; returns whether there is one: without rows there is none."""
        if self._rows:
            self._write(self._rows)
        if self._writer is not None:
            self._writer.close()
        return self._writer is not None

    def _write(self, rows: int) -> None:
        table = pa.concat_tables(self._waiting).combine_chunks()
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, table.schema)
        self._writer.write_table(table.slice(0, rows), row_group_size=self._group_rows)
        self._waiting = [table.slice(rows)]
        self._rows -= rows
