"""Read Parquet: only the requested columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.arrow_types import is_text
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.quoting import text_of
from infra.processes.this_process import note
from infra.sources.texts import without_columns
from infra.sources.types import refuse_twice_named

# Bytes of a Parquet file's batch, as its footer estimates them, and of a column that is buffered for decoding.
_BATCH_BYTES = 1 << 23
_BUFFER_BYTES = 1 << 20
_HIDDEN_INDEX = re.compile(r"__index_level_\d+__")


def parquet_schema(opened: BinaryIO, file: SourceFile) -> pa.Schema:
    """Column names and types of a Parquet file, without an index that pandas hides; UsageError if a name occurs twice.

    pandas gives these names to an index that has none: they number the rows, and its own reader shows no such column.
    """
    schema = _parquet(opened, file).schema_arrow
    schema = pa.schema([one for one in schema if not _HIDDEN_INDEX.fullmatch(one.name)])
    refuse_twice_named(file.uri, schema.names)
    return schema


def parquet_row_groups(opened: BinaryIO, file: SourceFile) -> list[tuple[int, int]]:
    """Rows and decoded bytes of each row group, as the footer states them."""
    metadata = _parquet(opened, file).metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def parquet_batches(
    opened: BinaryIO,
    file: SourceFile,
    columns: list[str],
    batch_rows: int,
    row_groups: tuple[int, int] | None = None,
    *,
    encoded: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Rows of a Parquet file with those of `columns` that it has; of row groups START to STOP if given.

    Args:
        encoded: columns of texts come as dictionaries if they are stored so.
    """
    parquet = _parquet(opened, file)
    coded = _coded(parquet, columns) if encoded else []
    if coded:
        opened.seek(0)
        parquet = _parquet(opened, file, coded)
    there = set(parquet.schema_arrow.names)
    present, row = [name for name in columns if name in there], 0
    for index in range(*(row_groups or (0, parquet.metadata.num_row_groups))):
        group = parquet.metadata.row_group(index)
        if not present:
            for start in range(0, group.num_rows, batch_rows):
                yield without_columns(min(batch_rows, group.num_rows - start))
            continue
        row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
        size = max(1, min(batch_rows, _BATCH_BYTES // row_bytes))
        note(file.uri, row)
        try:
            yield from parquet.iter_batches(batch_size=size, row_groups=[index], columns=present, use_threads=False)
            row += group.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(
                f"{file.uri} cannot be read as Parquet ({text_of(error)}).", remedy="Write it again."
            ) from error


def _coded(parquet: pq.ParquetFile, columns: list[str]) -> list[str]:
    """Those columns of texts that take less than the plain form's four bytes for each length, so are dictionaries."""
    metadata, schema = parquet.metadata, parquet.schema_arrow
    found, wanted = [], set(columns).intersection(schema.names)
    for at in range(metadata.num_columns):
        name = metadata.schema.column(at).path
        if name in wanted and is_text(schema.field(name).type):
            chunks = [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]
            if sum(one.total_uncompressed_size for one in chunks) < 4 * sum(one.num_values for one in chunks):
                found.append(name)
    return found


def _parquet(opened: BinaryIO, file: SourceFile, coded: Sequence[str] = ()) -> pq.ParquetFile:
    note(file.uri, 0)
    try:
        return pq.ParquetFile(
            opened,
            # Buffered: otherwise a whole column of a row group, which may be a whole file, is held in its stored form.
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            read_dictionary=list(coded),
            # As nanoseconds, 9999-12-31 would be a day of 1816.
            coerce_int96_timestamp_unit="us",
        )
    except (pa.ArrowInvalid, OSError) as error:  # the latter: its schema is nested too deeply
        raise UsageError(f"{file.uri} is not a Parquet file ({text_of(error)}).", remedy="Write it again.") from error
