"""Reads the rows of resolved files as Arrow batches of one schema, in the files' order, whatever their formats.

Of Parquet, only the requested columns are read. DuckDB gets resolved Parquet files to read by itself, with all cores:
open files whose digests were checked. Batches may be prefetched, in a thread of their own while the one before is
worked on.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import queue
import re
import shutil
import threading
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.arrow_rows import Numbers, ParquetFiles, before, is_text, is_time, without_rows
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.quoting import column_shown, columns_shown, name_shown, nearest_name, text_of, type_shown
from infra.processes.this_process import note
from infra.sources.documents import rows_of_files, text_batches, text_schema, without_columns
from infra.sources.places import Place, Places, Stamp, place_of, random_access, stamp_of, stream
from infra.sources.resolve import CSV, NAMED, Window, partition_schema, partition_value, with_partitions
from infra.sources.tables import CsvFile, csv_batches, csv_schema, json_batches, json_schema
from infra.sources.types import cast_exactly, common, converted, plain, refuse_twice_named

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of texts that a file holds once and names in many rows.
_DECODED_BYTES = 1 << 26
# Of the differences between files, and of the files with one, that a message lists.
_MOST_CLAUSES, _MOST_FILES = 50, 5
_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
_FACTS: dict[tuple[object, ...], FileFacts] = {}
# Bytes of a Parquet file's batch, as its footer estimates them, and of a column that is buffered for decoding.
_BATCH_BYTES = 1 << 23
_BUFFER_BYTES = 1 << 20
_HIDDEN_INDEX = re.compile(r"__index_level_\d+__")
# A process may usually have 1024 open files.
_MOST = 256
# The open files of this process: a path below it opens the file that is open, even if its name was given to another.
_OPEN = Path("/proc/self/fd")
T = TypeVar("T")
_AHEAD = 2


@dataclass(frozen=True)
class FileFacts:
    """Facts about a file, taken while all its bytes were read and matched its digest.

    Attributes:
        schema: its own columns and types.
        text_from: for each CSV column that became text, the row of the first text.
        row_groups: rows and decoded bytes of each row group of a Parquet file.
        stamp: stamp of a Parquet file that is read in place: it need not be hashed again while the stamp is the same.
    """

    schema: pa.Schema
    text_from: dict[str, int] = field(default_factory=dict)
    row_groups: tuple[tuple[int, int], ...] = ()
    stamp: Stamp | None = None


def file_facts(file: SourceFile, sources: list[SourceSpec], root: Path) -> FileFacts:
    """Read a file once for its facts; errors as `read_batches`. The call may run in another process."""
    return _Reading(sources, root).facts(file)


def remember_facts(file: SourceFile, sources: list[SourceSpec], facts: FileFacts) -> None:
    """Have this process know a file's facts, so that it is not read for them; its digest is checked when it is read."""
    _FACTS.setdefault(_key(file, sources), facts)


def fetch(file: SourceFile, sources: list[SourceSpec], root: Path, target: Path) -> tuple[SourceSpec, Stamp]:
    """Copy a file's bytes, decompressed, to `target` on this machine; a source that names the copy, and its stamp.

    Raises: CorruptError if the bytes are not what was resolved.
    """
    with stream(file, place_of(sources[file.source], root, file.rev)) as plain_bytes, target.open("wb") as copy:
        shutil.copyfileobj(plain_bytes, copy, 1 << 22)
    copied = SourceSpec(uri=str(target), format=file.format)
    stamp = stamp_of(file.model_copy(update={"uri": str(target)}), place_of(copied, root))
    assert stamp is not None
    return copied, stamp


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows and columns of some files are read, and in batches of which size.

    Attributes:
        window: with `window_column`, only rows with start <= time < end are read.
        columns: read only these, in this order; then bytes of `format: files` are loaded only if they are among them.
        schema: schema of all files together, if `merged_schema` found it before (perhaps over more files than these).
        row_groups: for a single Parquet file, the row groups START to STOP to read.
        stamp: for a single Parquet file, the stamp from `file_facts`.
        left_out: sorted numbers of rows that are not read, counted from 0 before the window's filter.
        encoded: columns of texts may come as dictionaries, in some batches or in all; with the same values.
        strict: without `schema`, refuse files whose columns or types differ.
    """

    window: Window | None = None
    window_column: str | None = None
    columns: list[str] | None = None
    batch_rows: int = 65536
    schema: pa.Schema | None = None
    row_groups: tuple[int, int] | None = None
    stamp: Stamp | None = None
    left_out: Numbers | None = None
    encoded: bool = False
    strict: bool = False


def read_batches(
    files: list[SourceFile],
    sources: list[SourceSpec],
    *,
    root: Path,
    selection: Selection | None = None,
    tally: Counter[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of `files` in order, in batches of at most `batch_rows` rows, none of them empty.

    All batches have one schema: columns in the order in which they first appear, null where a file lacks one.

    Args:
        files: what `resolve_sources` returned for `sources`.
        root: the spec's folder.
        selection: default: all rows and columns.
        tally: the rows that were read are added to `read`, and those outside the window to `window`.

    Raises:
        UsageError: a file is gone or malformed, a column has incompatible types, or a named column does not exist.
        CorruptError: a file's bytes are not what was resolved; rows that were returned before must not be used.
    """
    read, select = _Reading(sources, root), selection or Selection()
    window, window_column, batch_rows = select.window, select.window_column, select.batch_rows
    schema = select.schema
    if schema is None:
        schema = merged_schema(files, [read.facts(file) for file in files], strict=select.strict)
    there = set(schema.names)
    for name in [*(select.columns or []), *([window_column] if window and window_column else [])]:
        if name not in there:
            near = nearest_name(name, schema.names) or ""
            subject = "data.window.column: the" if name == window_column else "The"
            raise UsageError(
                f"{subject} data has no column {name_shown(name, near)}; "
                f"it has {columns_shown(schema.names, beside=name)}.",
                remedy="Correct the column's name.",
            )
    chosen = schema if select.columns is None else pa.schema([schema.field(name) for name in select.columns])
    time = None if window is None else window_column
    loaded = chosen if time is None or time in chosen.names else chosen.append(schema.field(time))
    first = 0
    for batch in read.batches(files, loaded, select):
        rest = batch if select.left_out is None else without_rows(batch, first, select.left_out)
        first += batch.num_rows
        kept = rest if window is None or time is None else rest.filter(in_window(rest, window, time))
        if tally is not None:
            tally.update(read=batch.num_rows, window=rest.num_rows - kept.num_rows)
        for start in range(0, kept.num_rows, batch_rows):
            yield kept.slice(start, batch_rows).select(chosen.names)


def merged_schema(files: Sequence[SourceFile], facts: Sequence[FileFacts], *, strict: bool = False) -> pa.Schema:
    """The schema of all files together.

    Args:
        strict: refuse files whose columns or types differ, see `data.schema`.

    Raises: UsageError that names each column whose types are incompatible, or with `strict` each difference.
    """
    if strict and (differences := _differences(files, facts)).clauses:
        raise UsageError(
            f"data.schema is strict, and files differ: {differences}.",
            remedy="Give all files the same columns and types, or set data.schema: union.",
        )
    fields: dict[str, pa.DataType] = {}
    first_with: dict[str, tuple[str, str]] = {}
    conflicts = _Listed()
    for file, fact in zip(files, facts, strict=True):
        for at, one in enumerate(fact.schema):
            kind, before = plain(one.type), fields.get(one.name, pa.null())
            both = common(before, kind)
            if both is None:
                other, why = first_with[one.name]
                here = _because(fact.text_from.get(one.name))
                conflicts.add(
                    (one.name, kind),
                    file,
                    f": the column {column_shown(one.name, at)} is {type_shown(kind)}{here}, but in {other} it is"
                    f" {type_shown(before)}{why}",
                )
                continue
            if both != before:
                first_with[one.name] = (file.uri, _because(fact.text_from.get(one.name)))
            fields[one.name] = both
    if conflicts.clauses:
        it = "it" if len(conflicts.clauses) == 1 else "each column"
        raise UsageError(f"{conflicts}.", remedy=f"Give {it} one type in all files.")
    return pa.schema(list(fields.items()))


def _differences(files: Sequence[SourceFile], facts: Sequence[FileFacts]) -> _Listed:
    """How the columns of files differ from those of the first one.

    A column without a value in a file has no type there, and a file without rows may have no columns.
    """
    differences = _Listed()
    types: dict[str, tuple[pa.DataType, str]] = {}  # the type of each column's first values, and their file
    start, first = "", dict[str, str]()
    for file, fact in zip(files, facts, strict=True):
        shown = {one.name: column_shown(one.name, at) for at, one in enumerate(fact.schema)}
        if not first:
            start, first = file.uri, shown
        clauses = [f" has no column {first[name]}" for name in first.keys() - shown.keys() if shown]
        clauses += [f" has the column {shown[name]}, which {start} lacks" for name in shown.keys() - first.keys()]
        for one in fact.schema:
            kind = plain(one.type)
            before, other = types.get(one.name, (pa.null(), ""))
            if pa.types.is_null(before):
                types[one.name] = (kind, file.uri)
            elif kind != before and not pa.types.is_null(kind):
                clauses.append(
                    f" has the column {shown[one.name]} as {type_shown(kind)}, but {other} as {type_shown(before)}"
                )
        for clause in sorted(clauses):
            differences.add(clause, file, clause)
    return differences


class _Listed:
    """Clauses about files, each listed once with the files of which it is true."""

    def __init__(self) -> None:
        self.clauses: dict[Hashable, tuple[str, list[str]]] = {}

    def add(self, about: Hashable, file: SourceFile, clause: str) -> None:
        """Add a file; the first clause `about` the same is kept."""
        self.clauses.setdefault(about, (f"{file.uri}{clause}", []))[1].append(file.uri)

    def __str__(self) -> str:
        parts = [
            sentence + (f" (also {_some_of(files[1:], _MOST_FILES)})" if len(files) > 1 else "")
            for sentence, files in self.clauses.values()
        ]
        return _some_of(parts, _MOST_CLAUSES, "; ")


def _some_of(texts: Sequence[str], most: int, between: str = ", ") -> str:
    more = len(texts) - most
    return between.join(texts[:most]) + (f"{between}and {more} more" if more > 0 else "")


class _Reading:
    """Reads the files of some sources into batches."""

    def __init__(self, sources: list[SourceSpec], root: Path) -> None:
        self._sources, self._places = sources, Places(sources, root)

    def batches(self, files: list[SourceFile], schema: pa.Schema, selection: Selection) -> Iterator[pa.RecordBatch]:
        """All rows, with exactly this schema."""
        # Neighbours of `files` and `text` are read together; any other file alone, and twice if it is listed twice.
        runs = itertools.groupby(
            enumerate(files), lambda pair: pair[1].source if pair[1].format in NAMED else -1 - pair[0]
        )
        for _, run in runs:
            together, row = [file for _, file in run], 0
            for batch in self._raw(together, schema, selection):
                for part in [batch] if selection.encoded else _parts(batch):
                    try:
                        conformed = _conformed(part, schema, selection.encoded)
                    except pa.ArrowInvalid:
                        self._refuse(part, schema, together[0], row, selection)
                    yield conformed
                    row += part.num_rows

    def _refuse(
        self, rows: pa.RecordBatch, schema: pa.Schema, file: SourceFile, first: int, selection: Selection
    ) -> NoReturn:
        """Raises Misfit for the first of some rows with a value that its column's type cannot hold."""
        if selection.row_groups is not None:
            first += sum(rows for rows, _ in self.facts(file).row_groups[: selection.row_groups[0]])
        there = set(rows.schema.names)
        for one in schema:
            if one.name in there:
                cast = partial(cast_exactly, kind=one.type)
                converted(rows.column(one.name), one.type, cast, file.uri, first, one.name)
        raise AssertionError("a column cannot be cast")

    def _raw(self, run: list[SourceFile], schema: pa.Schema, selection: Selection) -> Iterator[pa.RecordBatch]:
        """Rows of one file, or of a run of `files` or `text`, with those of the schema's columns that they have."""
        file, place = run[0], self._places.of(run[0])
        if file.format == "files":
            yield from rows_of_files(run, place, schema.names, selection.batch_rows)
            return
        if file.format == "text":
            pieces = self._sources[file.source].pieces
            assert pieces is not None
            have = text_schema(tuple(file.columns)).names
            columns = [name for name in schema.names if name in have]
            yield from text_batches(run, place, pieces, columns, selection.batch_rows)
            return
        # Arrow would give each row of JSON Lines a null for a column that the file does not have.
        skipped = file.columns if file.format == "jsonl" else ()
        own = pa.schema([one for one in schema if one.name not in skipped])
        for batch in self._rows(file, place, own, selection):
            yield with_partitions(batch, file, schema)

    def _rows(
        self, file: SourceFile, place: Place, schema: pa.Schema, selection: Selection
    ) -> Iterator[pa.RecordBatch]:
        """Rows of one CSV, JSON Lines or Parquet file, with those of the schema's columns that are in it."""
        if file.format == "parquet":
            facts = _FACTS.get(_key(file, self._sources))
            # The stamp that it had when this process found its facts, and checked its digest.
            stamp = selection.stamp or (None if facts is None else facts.stamp)
            with random_access(file, place, stamp) as opened:
                rows, groups = selection.batch_rows, selection.row_groups
                yield from parquet_batches(opened, file, schema.names, rows, groups, encoded=selection.encoded)
            return
        types = {one.name: one.type for one in schema}
        with stream(file, place) as opened:
            if file.format in CSV:
                yield from csv_batches(opened, CsvFile.of(file, self._sources), types)
            else:
                yield from json_batches(opened, file.uri, types)

    def facts(self, file: SourceFile) -> FileFacts:
        """A file's facts. They depend only on the bytes, so they are found once."""
        if file.format == "files":
            return FileFacts(pa.schema([*((name, pa.string()) for name in file.columns), ("bytes", pa.binary())]))
        if file.format == "text":
            return FileFacts(text_schema(tuple(file.columns)))
        key = _key(file, self._sources)
        if key not in _FACTS:
            _FACTS[key] = self._with_partitions(file, self._read_facts(file))
        return _FACTS[key]

    def _with_partitions(self, file: SourceFile, facts: FileFacts) -> FileFacts:
        """The facts, with the columns that folders name; UsageError if the file has one with other values."""
        named, own = partition_schema(file), set(facts.schema.names)
        twice = pa.schema([facts.schema.field(name) for name in file.column_types if name in own])
        for batch in self._rows(file, self._places.of(file), twice, Selection()) if twice.names else ():
            with_partitions(batch, file, twice)
        return replace(facts, schema=pa.schema([*facts.schema, *(one for one in named if one.name not in own)]))

    def _read_facts(self, file: SourceFile) -> FileFacts:
        place = self._places.of(file)
        if file.format == "parquet":
            stamp = stamp_of(file, place)
            with random_access(file, place) as opened:
                return FileFacts(
                    parquet_schema(opened, file), row_groups=tuple(parquet_row_groups(opened, file)), stamp=stamp
                )
        with stream(file, place) as opened:
            if file.format in CSV:
                schema, text_from = csv_schema(opened, CsvFile.of(file, self._sources))
                return FileFacts(schema, text_from)
            return FileFacts(json_schema(opened, file.uri))


def _key(file: SourceFile, sources: list[SourceSpec]) -> tuple[object, ...]:
    source = sources[file.source]
    columns, types = source.columns or (), file.column_types
    return (file.uri, file.blake3, file.format, tuple(columns), tuple(types.items()), source.csv)


def _because(text_from: int | None) -> str:
    return "" if text_from is None else f" (row {text_from} holds text)"


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that take at most `_DECODED_BYTES` and a row more, once their dictionaries of texts are decoded.

    Some kilobytes of a file can name one long text in each of many rows.
    """
    sizes = np.zeros(batch.num_rows)
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and column.type.value_type in _TEXTS:
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(sizes.cumsum() // _DECODED_BYTES, prepend=-1))
    for start, end in itertools.pairwise([*map(int, starts), batch.num_rows]):
        yield batch.slice(start, end - start)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, encoded: bool) -> pa.RecordBatch:
    if not schema.names:
        return batch
    arrays, there = [], set(batch.schema.names)
    for one in schema:
        column = batch.column(one.name) if one.name in there else pa.nulls(batch.num_rows, one.type)
        kept = encoded and pa.types.is_dictionary(column.type) and column.type.value_type == one.type
        arrays.append(column if kept or column.type == one.type else cast_exactly(column, one.type))
    return pa.RecordBatch.from_arrays(arrays, names=schema.names) if encoded else pa.record_batch(arrays, schema)


def in_window(batch: pa.RecordBatch, window: Window, column: str) -> pa.BooleanArray:
    """Whether each row is in the window; a time without a zone is UTC, a row without a time is in no window."""
    times = batch.column(column)
    kind = times.type
    if pa.types.is_null(kind):
        return pa.array([False] * batch.num_rows, pa.bool_())
    if not is_time(kind):
        raise UsageError(
            f"data.window.column: {column} is {type_shown(kind)}, not a date or a time.",
            remedy="Name a column that holds times.",
        )
    start, end = ((moment - _EPOCH) // timedelta(microseconds=1) for moment in (window.start, window.end))
    # Times are compared unrounded: rounded to microseconds, a time just before END would fall on it.
    return pc.fill_null(pc.and_not(before(times, end), before(times, start)), False)


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


@contextlib.contextmanager
def parquet_in_place(files: list[SourceFile], sources: list[SourceSpec], root: Path) -> Iterator[ParquetFiles | None]:
    """The files, all rows of them in order, to be read until this ends; None if they are not all Parquet.

    As long as they are read they stay open, and each is read through its descriptor. So the bytes are those whose
    digest was checked before; if a file was written to meanwhile, this raises.

    Raises: CorruptError if a file's bytes are not what was resolved; nothing that was read may be used then.
    """
    # A column that folders name for some files only may be in the others themselves.
    unlike = any(file.format != "parquet" or file.columns.keys() != files[0].columns.keys() for file in files)
    if not files or len(files) > _MOST or unlike or not _OPEN.is_dir():
        yield None
        return
    places = Places(sources, root)
    facts = [file_facts(file, sources, root) for file in files]
    rows = [sum(count for count, _ in one.row_groups) for one in facts]
    with contextlib.ExitStack() as held:
        opened = [
            held.enter_context(random_access(file, places.of(file), one.stamp))
            for file, one in zip(files, facts, strict=True)
        ]
        paths = tuple(str(_OPEN / str(one.fileno())) for one in opened)
        constants = {
            name: tuple(partition_value(file, name, pa.string()).as_py() for file in files) for name in files[0].columns
        }
        yield ParquetFiles(paths, tuple(itertools.accumulate(rows[:-1], initial=0)), constants)


def prefetch(items: Iterable[T]) -> Generator[T]:
    """The same items, of which two are made before they are needed; raises what making them raises, in its place.

    When this iterator is closed, no further item is made, and the thread has ended.
    """
    waiting: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: tuple[T] | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                return

    def make() -> None:
        try:
            for item in items:
                put((item,))
                if stopped.is_set():
                    break
            put(None)
        except BaseException as error:  # raised again where it is expected
            put(error)
        finally:
            if hasattr(items, "close"):  # a generator, and the files that it has open
                items.close()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(make,), name="prefetch", daemon=True)
    thread.start()
    try:
        while (made := waiting.get()) is not None:
            if isinstance(made, BaseException):
                raise made
            yield made[0]
    finally:
        stopped.set()
        thread.join()
