"""Cuts the source into units, the pieces of work of the first pass: a pure function of the files' contents.

A unit is a file; a run of row groups of a large Parquet file; or a run of small files that are rows or documents. Its
rows are numbered from 0, after the window's filter. Units are read in tasks: small neighbours are read together. The
rows that the contract set aside are left out of their units, whichever process on whichever machine reads one.

A dataset to which files are added must have the rows and types that reading all files at once gives. So the types of
each file are recorded beside the shards. If new files change a column's type or bring a new column, old rows would have
two types: then all files are sharded again.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.arrow_rows import Numbers, among
from data_contracts.canonical import canonical, digest
from data_contracts.errors import UsageError
from data_contracts.handoffs import ShardFile, SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.quoting import column_shown, rows_shown, type_shown
from infra.contract.quarantine import LeftOut, named
from infra.sources.places import Stamp, most_bytes
from infra.sources.read import FileFacts, Selection, fetch, file_facts, in_window, merged_schema, read_batches
from infra.sources.resolve import NAMED, Window
from training.formats.schema import Facts, Mismatch

# These decide the units, and with them the order of rows: they belong to the shard stage's version.
UNIT_BYTES = 2**28  # decoded bytes after which a unit of row groups ends
UNIT_FILES = 1_024  # files in a unit of `format: files` or `text`
UNIT_TEXT_BYTES = 2**25  # bytes after which a unit of documents ends
BATCH_ROWS = 2**14
# Small units are read together until they have this many bytes; this does not affect the result.
TASK_BYTES = 2**28


MapFiles = Callable[[Callable[[SourceFile], FileFacts], list[SourceFile]], Iterable[FileFacts]]


@dataclass(frozen=True)
class Unit:
    """A piece of the source.

    Attributes:
        number: position in the list of units.
        digest: of its content.
        bytes: as stored, or decoded if it is row groups; for planning and progress.
        rows: before the window's filter, where the file says so.
        row_groups: START and STOP within its one file; None: all of its files.
        stamp: of its file, see `FileFacts`.
        left_out: numbers of its rows that are not read, before the window's filter; they are not among `rows`.
    """

    number: int
    digest: str
    files: tuple[SourceFile, ...]
    bytes: int
    rows: int | None = None
    row_groups: tuple[int, int] | None = None
    stamp: Stamp | None = None
    left_out: Numbers | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Source:
    """Where units are read from; may be sent to another process.

    Attributes:
        root: the spec's folder.
        window: only rows whose time in `window_column` lies in it are read.
        schema: of all files together.
        strict: refuse files whose columns or types differ.
    """

    sources: list[SourceSpec]
    root: Path
    window: Window | None = None
    window_column: str | None = None
    schema: pa.Schema | None = None
    strict: bool = False

    def read(
        self, unit: Unit, columns: list[str] | None = None, tally: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A unit's rows in order; `tally` and errors as in `infra.sources.read_batches`."""
        selection = Selection(
            window=self.window,
            window_column=self.window_column,
            columns=columns,
            batch_rows=BATCH_ROWS,
            schema=self.schema,
            row_groups=unit.row_groups,
            stamp=unit.stamp,
            left_out=unit.left_out,
        )
        return read_batches(list(unit.files), self.sources, root=self.root, selection=selection, tally=tally)


class Fetcher:
    """Reads units; fetches a remote Parquet file once for all of its units that are read one after another."""

    def __init__(self, source: Source, folder: Path) -> None:
        self._source, self._folder = source, folder
        self._at_hand: tuple[SourceFile, Source, SourceFile, Stamp] | None = None

    def read(
        self, unit: Unit, columns: list[str] | None = None, tally: Counter[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A unit's rows, as in `Source.read`."""
        if unit.row_groups is None or unit.stamp is not None:
            yield from self._source.read(unit, columns, tally)
            return
        if self._at_hand is None or self._at_hand[0] != unit.files[0]:
            self.close()
            self._at_hand = self._fetched(unit.files[0])
        _, source, file, stamp = self._at_hand
        yield from source.read(replace(unit, files=(file,), stamp=stamp), columns, tally)

    def close(self) -> None:
        """Remove the fetched file."""
        if self._at_hand is not None:
            Path(self._at_hand[2].uri).unlink(missing_ok=True)
            self._at_hand = None

    def _fetched(self, file: SourceFile) -> tuple[SourceFile, Source, SourceFile, Stamp]:
        target = self._folder / f"fetched-{uuid.uuid4().hex}.parquet"
        copied, stamp = fetch(file, self._source.sources, self._source.root, target)
        here = file.model_copy(update={"uri": str(target), "source": 0, "rev": None})
        return file, replace(self._source, sources=[copied]), here, stamp


def rows_in_words(source: Source, unit: Unit, folder: Path, rows: NDArray[np.int64]) -> str:
    """Where rows of a unit are, in words: their files, and their numbers there from 0 before the window's filter.

    Args:
        folder: where a remote file may be fetched to; the files are read once more.
        rows: sorted numbers of rows of the unit.
    """
    fetcher, column = Fetcher(replace(source, window=None), folder), source.window_column if source.window else None
    assert source.schema is not None
    columns = [column] if column else source.schema.names[:1]
    seen = kept = 0
    found: list[tuple[str, int, int]] = []
    for file in unit.files:
        groups = file_facts(file, source.sources, source.root).row_groups if unit.row_groups else []
        at = sum(count for count, _ in groups[: unit.row_groups[0]]) if unit.row_groups else 0
        for batch in fetcher.read(replace(unit, files=(file,), left_out=None), columns):
            there = np.ones(batch.num_rows, bool)
            if unit.left_out is not None:
                there[among(unit.left_out, seen, batch.num_rows)] = False
            if source.window and column:
                there &= in_window(batch, source.window, column).to_numpy(zero_copy_only=False)
            inside = np.flatnonzero(there)
            here = inside[among(rows, kept, len(inside))] + at
            if len(here):
                found.append((named(file, source.root), int(here[0]), int(here[-1])))
            seen, kept, at = seen + batch.num_rows, kept + len(inside), at + batch.num_rows
    fetcher.close()
    return rows_shown(found, whole_files=unit.files[0].format == "files")


@dataclass(frozen=True)
class Opened:
    """Files that are ready to be sharded.

    Attributes:
        source: with the schema of all files together.
        facts: about each file by its name in `Types`, without files that are rows themselves.
        lacking: columns that some files lack, and how many files do.
    """

    source: Source
    units: list[Unit]
    facts: dict[str, FileFacts]
    lacking: dict[str, int]


def open_source(
    files: Sequence[SourceFile],
    source: Source,
    map_files: MapFiles,
    earlier: Earlier | None = None,
    every: Sequence[SourceFile] = (),
) -> Opened:
    """The source with the schema of all files, and the units of `files`.

    Args:
        map_files: a `map`, perhaps over other processes; it is not needed for files that are rows themselves.
        earlier: a dataset to which `files` are to be added.
        every: with `earlier`, all files: those of the dataset and the new ones.

    Raises: NotExtended if the dataset's rows would have other types with the new files; as `merged_schema`.
    """

    def named(file: SourceFile) -> str:
        return known_as(file, source.sources[file.source])

    def facts_of(listed: Sequence[SourceFile]) -> list[FileFacts]:
        learnt = iter(map_files(partial(source_facts, source), [file for file in listed if file.format not in NAMED]))
        return [source_facts(source, file) if file.format in NAMED else next(learnt) for file in listed]

    own, every = facts_of(files), every if earlier is not None else files
    known = {} if earlier is None or earlier.types is None else dict(earlier.types.files)
    known |= {named(file): facts for file, facts in zip(files, own, strict=True) if file.format not in NAMED}
    unknown = [file for file in every if file.format not in NAMED and named(file) not in known]
    known |= zip(map(named, unknown), facts_of(unknown), strict=True)
    names = [None if file.format in NAMED else named(file) for file in every]
    facts = [
        source_facts(source, file) if name is None else known[name] for file, name in zip(every, names, strict=True)
    ]
    schema = merged_schema(every, facts, strict=source.strict)
    opened = replace(source, schema=schema if earlier is None else earlier.read_as(schema))
    wanted = {name: known[name] for name in names if name is not None}
    return Opened(opened, cut_units(files, own), wanted, lacking(schema, facts))


def source_facts(source: Source, file: SourceFile) -> FileFacts:
    """The facts about one file; reads all its bytes."""
    return file_facts(file, source.sources, source.root)


def cut_units(files: Sequence[SourceFile], facts: Sequence[FileFacts]) -> list[Unit]:
    """The units of files, in the files' order."""
    units: list[Unit] = []
    pairs = list(zip(files, facts, strict=True))
    for (format_, _), run in groupby(pairs, key=lambda pair: (pair[0].format, pair[0].source)):
        together = list(run)
        if format_ == "text":
            units += of_documents([file for file, _ in together], len(units))
            continue
        if format_ == "files":
            for start in range(0, len(together), UNIT_FILES):
                part = tuple(file for file, _ in together[start : start + UNIT_FILES])
                contents = [[file.blake3, file.columns] for file in part]
                units.append(Unit(len(units), digest(contents), part, sum(file.bytes for file in part), len(part)))
            continue
        for file, fact in together:
            if fact.row_groups:
                units += _of_parquet(file, fact, len(units))
            else:
                units.append(Unit(len(units), _content(file), (file,), file.bytes))
    return units


def most_rows(units: Sequence[Unit]) -> int:
    """How many rows units have at most: one a byte, where their files do not say so."""
    return sum(sum(map(most_bytes, unit.files)) if unit.rows is None else unit.rows for unit in units)


def tasks_of(units: Sequence[Unit], most_bytes: int | None = None) -> list[list[Unit]]:
    """Units in runs that one process reads; a file that must be fetched first is never in two runs."""
    task_bytes = TASK_BYTES if most_bytes is None else min(TASK_BYTES, most_bytes)
    tasks: list[list[Unit]] = []
    size = 0
    for unit in units:
        fetched = unit.row_groups is not None and unit.stamp is None
        same_file = tasks and fetched and tasks[-1][-1].files == unit.files
        if not tasks or (size + unit.bytes > task_bytes and not same_file):
            tasks.append([])
            size = 0
        tasks[-1].append(unit)
        size += unit.bytes
    return tasks


def of_documents(files: Sequence[SourceFile], number: int) -> list[Unit]:
    """Units of neighbouring documents; a large one is a unit of its own."""
    units: list[Unit] = []
    part: list[SourceFile] = []
    size = 0
    for index, file in enumerate(files):
        part.append(file)
        size += file.bytes
        if size >= UNIT_TEXT_BYTES or len(part) == UNIT_FILES or index + 1 == len(files):
            contents = [[one.blake3, one.columns] for one in part]
            units.append(Unit(number + len(units), digest(contents), tuple(part), size))
            part, size = [], 0
    return units


def _content(file: SourceFile) -> str:
    """The digest of a file's rows: of its bytes, and of the columns that its folders name."""
    return digest([file.blake3, file.columns, file.column_types]) if file.columns else file.blake3


def _of_parquet(file: SourceFile, fact: FileFacts, number: int) -> list[Unit]:
    units: list[Unit] = []
    start = rows = size = 0
    for index, (group_rows, group_bytes) in enumerate(fact.row_groups):
        rows, size = rows + group_rows, size + group_bytes
        last = index + 1 == len(fact.row_groups)
        if size >= UNIT_BYTES or last:
            groups = (start, index + 1)
            # `number` says which row groups: a unit's digest is that of its whole file.
            units.append(Unit(number + len(units), _content(file), (file,), size, rows, groups, fact.stamp))
            start, rows, size = index + 1, 0, 0
    return units


class NotExtended(Exception):
    """New files cannot be added to a dataset as its shards are; its text says why, after "because"."""


@dataclass(frozen=True)
class Types:
    """The types of a dataset's rows, by which new files are compared.

    Attributes:
        read: of all files together, as they are read.
        stored: of the rows that were stored, before and after they were narrowed.
        files: types and first texts of each file; those of `format: files` and `text` follow from their pattern.
    """

    read: pa.Schema
    stored: Facts
    files: dict[str, FileFacts]

    def may_be_stored(self, sensitive: Collection[str]) -> bool:
        """Whether no type can have keys of objects in a sensitive column, which may be values."""
        withheld = set(sensitive)
        schemas = [self.read, self.stored.raw or [], *(facts.schema for facts in self.files.values())]
        return not any(one.name in withheld and pa.types.is_nested(one.type) for schema in schemas for one in schema)

    def to_json(self) -> dict[str, object]:
        """As JSON, in which equal schemas of files stand once."""
        schemas = list(dict.fromkeys(_to_hex(one.schema) for one in self.files.values()))
        at = {text: number for number, text in enumerate(schemas)}
        files = {name: [at[_to_hex(one.schema)], one.text_from] for name, one in self.files.items()}
        stored = [_to_hex(self.stored.raw), _to_hex(self.stored.form)]
        return {"read": _to_hex(self.read), "stored": stored, "schemas": schemas, "files": files}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Types:
        """What `to_json` gave."""
        schemas = [_from_hex(text) for text in value["schemas"]]
        files = {name: FileFacts(schemas[at], text_from) for name, (at, text_from) in value["files"].items()}
        return cls(_from_hex(value["read"]), Facts(*map(_from_hex, value["stored"])), files)


@dataclass(frozen=True)
class Earlier:
    """A dataset whose shards the new dataset includes.

    Attributes:
        splits: what its splits hold.
        counts: how its raw rows became those of the splits, see `Sharded`.
        types: None if they were not recorded, as by an earlier version or because they may hold sensitive values.
    """

    splits: dict[str, list[ShardFile]]
    schema: pa.Schema
    dropped_rows: dict[str, int]
    counts: dict[str, int] = field(default_factory=dict)
    types: Types | None = None

    def rows(self) -> dict[str, int]:
        """Rows of each split."""
        return {name: sum(shard.rows for shard in shards) for name, shards in self.splits.items()}

    def read_as(self, together: pa.Schema) -> pa.Schema:
        """The schema by which new files are read, given that of all files together; NotExtended if it is another."""
        if self.types is None:
            raise NotExtended("the types of the files that were sharded are not recorded")
        before = self.types.read
        there = set(before.names)
        new = [name for name in together.names if name not in there]
        moved = [one for one in before if together.field(one.name).type != one.type]
        if new or moved:
            parts = [f"the column {column_shown(name)} is new" for name in new]
            parts += [
                f"the column {column_shown(one.name)} was {type_shown(one.type)} and is "
                f"{type_shown(together.field(one.name).type)}"
                for one in moved
            ]
            raise NotExtended(", ".join(parts))
        return before

    def stored_with(self, new: Facts) -> Facts:
        """The types of all stored rows; NotExtended if rows of the dataset would have another type with new rows."""
        assert self.types is not None
        before = self.types.stored
        together = Facts(before.raw, before.form)
        try:
            together.merge(new)
            fits = together.schema().equals(self.schema, check_metadata=True)
        except (Mismatch, UsageError):
            fits = False  # sharding all files says why
        if not fits:
            raise NotExtended("the new files change the type of a stored column")
        return together


def known_as(file: SourceFile, source: SourceSpec) -> str:
    """The name of a file in `Types`: what decides its types."""
    csv = source.csv.model_dump(exclude_defaults=True) if source.csv else {}
    more = [settings for settings in (file.columns, file.column_types, csv, file.hidden_index) if settings]
    return canonical([file.blake3, file.format, source.columns, *more]).decode()


def lacking(schema: pa.Schema, facts: Iterable[FileFacts]) -> dict[str, int]:
    """Columns that some files lack, whose rows have nulls there, and the number of these files."""
    every = set(schema.names)
    files = Counter(name for fact in facts for name in every.difference(fact.schema.names))
    return {name: files[name] for name in schema.names if name in files}


def _to_hex(schema: pa.Schema) -> str:
    return str(schema.serialize().to_pybytes().hex())


def _from_hex(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def without_quarantined(units: Sequence[Unit], left_out: LeftOut) -> list[Unit]:
    """The units of all files, in order, each with the rows that it leaves out."""
    found: list[Unit] = []
    files = first = 0  # files before the next one; rows of the current file before this unit
    for unit in units:
        if unit.files[0].format == "text":
            found += _documents(unit, [left_out.of(files + at) for at in range(len(unit.files))], len(found))
            files += len(unit.files)
            continue
        if len(unit.files) > 1 or unit.files[0].format == "files":
            rows = [at for at in range(len(unit.files)) if len(left_out.of(files + at))]
            found.append(_without(replace(unit, number=len(found)), np.array(rows, np.int64)))
            files += len(unit.files)
            continue
        if unit.row_groups is None or unit.row_groups[0] == 0:
            files, first = files + 1, 0
        gone = left_out.of(files - 1)
        unit = replace(unit, number=len(found))
        found.append(_without(unit, gone if unit.rows is None else among(gone, first, unit.rows)))
        first += unit.rows or 0
    return found


def _documents(unit: Unit, gone: list[Numbers], number: int) -> list[Unit]:
    """A unit of documents; of one document each, if a document leaves out rows: its rows are not counted before."""
    if not any(map(len, gone)):
        return [replace(unit, number=number)]
    apart = [of_documents([file], number + at)[0] for at, file in enumerate(unit.files)]
    return [_without(one, rows) for one, rows in zip(apart, gone, strict=True)]


def _without(unit: Unit, gone: Numbers) -> Unit:
    if not len(gone):
        return unit
    return replace(unit, left_out=gone, rows=None if unit.rows is None else unit.rows - len(gone))
