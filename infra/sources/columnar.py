"""Read Parquet, and files that are rows themselves (texts, images): only the requested columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.arrow_types import is_text
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.quoting import column_shown, text_of
from infra.processes.this_process import note
from infra.sources.places import Place
from infra.sources.streams import whole

# Bytes of files in one batch; a larger file is a batch of its own.
_FILES_BYTES = 1 << 25
# Bytes of a Parquet file's batch, as its footer estimates them, and of a column that is buffered for decoding.
_BATCH_BYTES = 1 << 23
_BUFFER_BYTES = 1 << 20
_LARGEST = 2**31 - 1
_HIDDEN_INDEX = re.compile(r"__index_level_\d+__")


def parquet_schema(opened: BinaryIO, file: SourceFile) -> pa.Schema:
    """Column names and types of a Parquet file, without an index that pandas hides; UsageError if a name occurs twice.

    pandas gives these names to an index that has none: they number the rows, and its own reader shows no such column.
    """
    schema = _parquet(opened, file).schema_arrow
    schema = pa.schema([one for one in schema if not _HIDDEN_INDEX.fullmatch(one.name)])
    refuse_twice_named(file.uri, schema.names)
    return schema


def refuse_twice_named(uri: str, names: list[str]) -> None:
    """UsageError if two columns of a file have one name."""
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        shown = column_shown(twice[0], names.index(twice[0]))
        raise UsageError(f"{uri} has the column {shown} twice.", remedy="Rename one of them.")


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


def rows_of_files(run: list[SourceFile], place: Place, columns: list[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """One row per file: `path`, the pattern's columns, `bytes`; a file is opened only if `bytes` is requested."""
    waiting: list[SourceFile] = []
    size = 0
    for file in run:
        if file.bytes > _LARGEST and "bytes" in columns:
            raise UsageError(
                f"{file.uri} is larger than 2 GiB, the most that one row can hold.",
                remedy="Split it into several files.",
            )
        added = file.bytes if "bytes" in columns else 0
        if waiting and (len(waiting) == batch_rows or size + added > _FILES_BYTES):
            yield _file_batch(waiting, place, columns)
            waiting, size = [], 0
        waiting.append(file)
        size += added
    if waiting:
        yield _file_batch(waiting, place, columns)


def without_columns(rows: int) -> pa.RecordBatch:
    """A batch that has rows but no columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _file_batch(files: list[SourceFile], place: Place, columns: list[str]) -> pa.RecordBatch:
    named = [name for name in files[0].columns if name in columns]
    arrays = {name: pa.array([file.columns[name] for file in files], pa.string()) for name in named}
    if "bytes" in columns:
        arrays["bytes"] = pa.array([whole(file, place) for file in files], pa.binary())
    return pa.RecordBatch.from_pydict(arrays) if arrays else without_columns(len(files))


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
