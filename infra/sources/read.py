"""Reads the rows of resolved files as Arrow batches of one schema, in the files' order, whatever their formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC
from functools import partial
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.spec import SourceSpec
from infra.sources.columnar import parquet_batches, parquet_schema, rows_of_files
from infra.sources.places import Places
from infra.sources.streams import random_access, stream
from infra.sources.tables import csv_batches, csv_schema, json_batches, json_schema
from infra.sources.types import common, plain
from infra.sources.window import Window


def read_batches(
    files: list[SourceFile],
    sources: list[SourceSpec],
    *,
    root: Path,
    window: Window | None = None,
    window_column: str | None = None,
    columns: list[str] | None = None,
    batch_rows: int = 65536,
) -> Iterator[pa.RecordBatch]:
    """The rows of `files` in order, in batches of at most `batch_rows` rows, none of them empty.

    All batches have one schema: columns in the order in which they first appear, null where a file lacks one.

    Args:
        files: what `resolve_sources` returned for `sources`.
        root: the spec's folder.
        window: with `window_column`, only rows with start <= time < end are read.
        columns: read only these, in this order; bytes of `format: files` are not loaded then unless asked for.

    Raises:
        UsageError: a file is gone or malformed, a column has types that do not go together, or there is no such column.
        CorruptError: a file's bytes are not what was resolved; rows that came before are not to be used.
    """
    read = _Reading(sources, root)
    schema = read.schema(files)
    for name in [*(columns or []), *([window_column] if window and window_column else [])]:
        if name not in schema.names:
            raise UsageError(
                f"The data has no column {name}; it has {', '.join(schema.names)}.", remedy="Correct the column's name."
            )
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    loaded = wanted
    if window is not None and window_column is not None:
        keep = partial(_inside, window=window, column=window_column)
        if window_column not in wanted.names:
            loaded = wanted.append(schema.field(window_column))
    for batch in read.batches(files, loaded, batch_rows):
        kept = batch if keep is None else keep(batch)
        for start in range(0, kept.num_rows, batch_rows):
            yield kept.slice(start, batch_rows).select(wanted.names)


class _Reading:
    """Files of some sources on their way to batches."""

    def __init__(self, sources: list[SourceSpec], root: Path) -> None:
        self._sources, self._places = sources, Places(sources, root)

    def schema(self, files: list[SourceFile]) -> pa.Schema:
        """The schema of all files together; UsageError naming file and column where two types do not go together."""
        fields: dict[str, pa.DataType] = {}
        said_by: dict[str, tuple[str, str]] = {}
        for file in files:
            schema, text_from = self._of(file)
            for field in schema:
                before = fields.get(field.name, pa.null())
                both = common(before, plain(field.type))
                if both is None:
                    other, why = said_by[field.name]
                    here = _because(text_from.get(field.name))
                    raise UsageError(
                        f"{file.uri}: the column {field.name} is {plain(field.type)}{here},"
                        f" but in {other} it is {before}{why}.",
                        remedy="Give it one type in all files.",
                    )
                if both != before:
                    said_by[field.name] = (file.uri, _because(text_from.get(field.name)))
                fields[field.name] = both
        return pa.schema(list(fields.items()))

    def batches(self, files: list[SourceFile], schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """All rows with exactly this schema."""
        for _, run in groupby(files, key=lambda file: file.source if file.format == "files" else file.uri):
            together = list(run)
            try:
                for batch in self._raw(together, schema, batch_rows):
                    yield _conformed(batch, schema)
            except pa.ArrowInvalid as error:
                raise UsageError(
                    f"{together[0].uri}: a value does not fit the type that its column has over all files.",
                    remedy="Give the column one type in all files.",
                ) from error

    def _raw(self, run: list[SourceFile], schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows of one file, or of a run of `format: files`."""
        file, place = run[0], self._places.of(run[0])
        if file.format == "files":
            yield from rows_of_files(run, place, schema.names, batch_rows)
            return
        types = {field.name: field.type for field in schema if field.name in self._of(file)[0].names}
        if file.format == "parquet":
            with random_access(file, place) as opened:
                yield from parquet_batches(opened, file, list(types), batch_rows)
            return
        with stream(file, place) as opened:
            if file.format == "csv":
                yield from csv_batches(opened, file.uri, self._sources[file.source].columns, types)
            else:
                yield from json_batches(opened, file.uri, types)

    def _of(self, file: SourceFile) -> tuple[pa.Schema, dict[str, int]]:
        """A file's own schema, and from which row on a CSV column is text. It follows from the bytes: found once."""
        if file.format == "files":
            return pa.schema([*((name, pa.string()) for name in file.columns), ("bytes", pa.binary())]), {}
        columns = self._sources[file.source].columns
        key = (file.blake3, file.format, tuple(columns or ()))
        if key not in _SCHEMAS:
            _SCHEMAS[key] = self._found(file, columns)
        return _SCHEMAS[key]

    def _found(self, file: SourceFile, columns: list[str] | None) -> tuple[pa.Schema, dict[str, int]]:
        place = self._places.of(file)
        if file.format == "parquet":
            with random_access(file, place) as opened:
                return parquet_schema(opened, file), {}
        with stream(file, place) as opened:
            if file.format == "csv":
                return csv_schema(opened, file.uri, columns)
            return json_schema(opened, file.uri), {}


_SCHEMAS: dict[tuple[str, str, tuple[str, ...]], tuple[pa.Schema, dict[str, int]]] = {}


def _because(text_from: int | None) -> str:
    return "" if text_from is None else f" (a text stands in row {text_from})"


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not schema.names:
        return batch
    arrays = []
    for field in schema:
        column = batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _inside(batch: pa.RecordBatch, window: Window, column: str) -> pa.RecordBatch:
    """The rows of the window; a time without a zone is UTC, a row without a time is in no window."""
    times = batch.column(column)
    kind = times.type
    if pa.types.is_null(kind):
        return batch.slice(0, 0)
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise UsageError(
            f"data.window.column: {column} is {kind}, not a date or a time.", remedy="Name a column that holds times."
        )
    naive = getattr(kind, "tz", None) is None
    edge = pa.timestamp("us") if naive else pa.timestamp("us", "UTC")
    bounds = [
        pa.scalar(moment.astimezone(UTC).replace(tzinfo=None) if naive else moment.astimezone(UTC), edge)
        for moment in (window.start, window.end)
    ]
    # Times are compared as they are: rounded to microseconds, one just before END would fall on it.
    return batch.filter(pc.and_(pc.greater_equal(times, bounds[0]), pc.less(times, bounds[1])))
