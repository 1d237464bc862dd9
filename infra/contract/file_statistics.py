"""What a check finds in each raw file: measured here or on other machines, profiled, and kept between runs.

So only new files are measured. Known statistics lie in a private folder that the caller filled from the store; new ones
are written beside them. The profile of all files is sealed beside a contract report, and read from there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from data_contracts.arrow_rows import Data
from data_contracts.canonical import canonical, digest
from data_contracts.contract.file_statistics import (
    FileStatistics,
    GroupedFile,
    Settled,
    StatisticsGroup,
    StatisticsSum,
    added,
    cut,
    grouped,
    kept,
    name_of,
    storable,
)
from data_contracts.contract.questions import ROWS, Measure, ScanQuestion
from data_contracts.contract.scan import Resources, scanned
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import FileEntry, Ref, SourceFile
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.profile.profile import Merger, profile_of
from data_contracts.records import Profile
from infra import scratch
from infra.cluster_tasks import Cluster
from infra.machine import machine_bytes, num_cores
from infra.sources import Selection, file_facts, merged_schema, parquet_in_place, prefetch, read_batches
from infra.sources.read import FileFacts, remember_facts
from infra.sources.resolve import NAMED
from infra.store import Store, Writer

KNOWN, NEW = "known", "new"

P = TypeVar("P", FileStatistics, StatisticsGroup)
# Of DuckDB's before it spills, at most; what Arrow, Parquet and Great Expectations hold comes on top.
MEMORY_BYTES = 512 * 2**20
# Of the files of one task, as stored. Starting a task takes as long as measuring some MB.
LEAST_TASK_BYTES, MOST_TASK_BYTES = 2**22, 2**28
PROFILE_FILE = "profile.json"
# Of `format: files`; each is a whole file, which the profile does not open.
_CONTENT = "bytes"

log = logging.getLogger("trainwright")


def statistics_name(file: SourceFile, source: SourceSpec) -> str:
    """The file name of statistics: the same for the same bytes read to the same rows, wherever the file lies."""
    pieces = None if source.pieces is None else source.pieces.model_dump()
    csv = source.csv.model_dump(exclude_defaults=True) if source.csv else {}
    more = [one for one in (file.chunk_offsets, file.column_types, csv, "without index" * file.hidden_index) if one]
    read = [file.blake3, file.format, file.columns, source.columns, pieces, *more]
    return f"{digest(read)[:40]}.json"


def statistics_names(request: ContractRequest) -> list[str]:
    """The file names of the statistics of a request's files, in their order."""
    return [statistics_name(file, request.sources[file.source]) for file in request.files]


class KnownStatistics:
    """The statistics of a request's files, known and new.

    Args:
        folder: of the statistics.
        cluster: other machines, which read the new files instead of this one.
    """

    def __init__(self, request: ContractRequest, folder: Path, cluster: Cluster | None = None) -> None:
        self._request, self._folder, self._cluster = request, folder, cluster
        self._names = statistics_names(request)
        self._groups = list(cut(self._names))
        self._sum: StatisticsSum | None = None
        self._schemas: dict[str, pa.Schema] = {}
        self._unmeasured: set[str] = set()

    def remember_facts(self) -> None:
        """Have this process know the facts about known files, so that they stay unread, and those that others find."""
        new: list[SourceFile] = []
        for positions, name in self._groups:
            group = self._group(positions, name)
            if group is not None:
                for at, one in zip(positions, group.files, strict=True):
                    self._remember(at, group.schemas[one.schema_at], one)
                continue
            for at in positions:
                part = self._stored(FileStatistics, self._names[at])
                if part is not None:
                    self._remember(at, part.own, part)
                elif self._request.files[at].format not in NAMED:
                    new.append(self._request.files[at])
        if self._cluster is not None:
            sources, root = self._request.sources, Path(self._request.root)
            for file, facts in zip(new, facts_elsewhere(self._cluster, sources, root, new), strict=True):
                remember_facts(file, sources, facts)

    def _group(self, positions: range, name: str | None, seen: str | None = None) -> StatisticsGroup | None:
        """The group of the files at these positions, as `_stored`."""
        group = self._stored(StatisticsGroup, name, seen)
        return group if group is not None and len(group.files) == len(positions) else None

    def _stored(self, kind: type[P], name: str | None, seen: str | None = None) -> P | None:
        """Statistics or a group that is known or new, under this schema of all files if one is given; else None."""
        for folder in (KNOWN, NEW) if name is not None else ():
            path = self._folder / folder / str(name)
            if path.exists():
                # What cannot be read as statistics is measured again: a writer of the store may have sealed anything.
                with contextlib.suppress(ValueError):
                    stored = kind.model_validate_json(path.read_bytes())
                    self._read_schemas(stored.schemas if isinstance(stored, StatisticsGroup) else [stored.own])
                    if seen is None or stored.schema_of_all == seen:
                        return stored
        return None

    def _read_schemas(self, serialized: list[str]) -> None:
        """Read the schemas of files from their hexadecimal digits; ValueError for what is not one."""
        for own in serialized:
            if own not in self._schemas:
                self._schemas[own] = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(own)))

    def _remember(self, at: int, own: str, facts: FileStatistics | GroupedFile) -> None:
        groups = tuple((rows, size) for rows, size in facts.row_groups)
        known = FileFacts(self._schemas[own], facts.text_from, groups)
        remember_facts(self._request.files[at], self._request.sources, known)

    def answer(self, resources: Resources, questions: dict[int, ScanQuestion], schema: pa.Schema) -> Settled:
        """The number of rows, and the expectations that hold by what is kept; new files are measured first."""
        to_measure = kept([ROWS, *(one for question in questions.values() for one in question.measures)],
                      self._request.sensitive)  # fmt: skip
        seen, self._sum = digest(schema.serialize().to_pybytes().hex()), None
        request = self._request
        measures = FileMeasures(request.sources, Path(request.root), request.sensitive, to_measure, schema, seen)
        total, new = StatisticsSum(), self._measured_elsewhere(measures)
        for positions, name in self._groups:
            group = self._group(positions, name, seen)
            if group is not None:
                total.add(group)
                continue
            parts = []
            for at in positions:
                part = self._stored(FileStatistics, self._names[at], seen)
                if part is None:
                    part, new = self._measured_here(at, measures, resources), new + 1
                if part is None:
                    return 0, set()
                total.add(part)
                parts.append(part)
            if name is not None and (group := grouped(parts)) is not None:
                (self._folder / NEW / name).write_bytes(canonical(group.to_json()))
        self._sum = total
        values = {one: added(one, total.values[name_of(one)]) for one in to_measure if name_of(one) in total.values}
        settled = {
            index
            for index, question in questions.items()
            if all(one in values for one in question.measures)
            and question.holds(*(values[one] for one in question.measures))
        }
        log.info("contract: %d of %d files are known; %d of %d expectations are settled file by file, the others read"
                 " all files", len(self._names) - new, len(self._names), len(settled), len(questions))  # fmt: skip
        return total.rows, settled

    def profile(self) -> Profile | None:
        """The profile of all files; None if not every file has statistics."""
        return None if self._sum is None else self._sum.profile()

    def _measured_here(self, at: int, to_measure: FileMeasures, resources: Resources) -> FileStatistics | None:
        """A new file's statistics, measured by this process; None if DuckDB cannot measure it."""
        if self._names[at] in self._unmeasured:
            return None
        part = measured_statistics(to_measure, self._request.files[at], resources)
        return None if part is None else self._written(at, part)

    def _measured_elsewhere(self, to_measure: FileMeasures) -> int:
        """Have other machines measure files without statistics under this schema of all files; returns their number."""
        if self._cluster is None:
            return 0
        have: set[str] = set()
        for positions, name in self._groups:
            if self._group(positions, name, to_measure.schema_digest) is not None:
                have.update(self._names[at] for at in positions)
        new = {
            name: at
            for at, name in enumerate(self._names)
            if name not in have and self._stored(FileStatistics, name, to_measure.schema_digest) is None
        }
        files = [self._request.files[at] for at in new.values()]
        for at, part in zip(new.values(), statistics_elsewhere(self._cluster, to_measure, files), strict=True):
            if part is None:
                self._unmeasured.add(self._names[at])
            else:
                self._written(at, part)
        return len(new)

    def _written(self, at: int, part: FileStatistics) -> FileStatistics:
        (self._folder / NEW / self._names[at]).write_bytes(canonical(part.to_json()))
        return part


KnownFile = tuple[SourceFile, FileFacts]


@dataclass(frozen=True)
class FileMeasures:
    """What is measured of each raw file; may be sent to another machine.

    Attributes:
        sources, root: as for `read_batches`.
        sensitive: columns of which only counts are kept.
        measures: aggregates that add up over files, and the number of rows.
        schema: of all files together.
        schema_digest: as the statistics name the schema of all files.
    """

    sources: list[SourceSpec]
    root: Path
    sensitive: list[str]
    measures: list[Measure]
    schema: pa.Schema
    schema_digest: str


def measured_statistics(to_measure: FileMeasures, file: SourceFile, resources: Resources) -> FileStatistics | None:
    """A file's statistics; None if DuckDB cannot measure it. Errors as in `read_batches`."""
    sources, root, schema = to_measure.sources, to_measure.root, to_measure.schema
    select = Selection(schema=schema)

    def read(columns: list[str] | None) -> Any:
        for batch in read_batches([file], sources, root=root, selection=replace(select, columns=columns)):
            resources.moved()
            yield batch

    columns = sorted({name for one in to_measure.measures for name in one.columns}) or schema.names[:1]
    data = Data(schema, read, lambda: parquet_in_place([file], sources, root))
    values = scanned(to_measure.measures, data, columns, resources)
    profile = profiled(
        [file],
        sources,
        root,
        selection=select,
        sensitive=to_measure.sensitive,
        on_batch=resources.moved,
        empty=True,
    )
    if values is None or profile is None:
        return None
    facts = file_facts(file, sources, root)
    return FileStatistics(
        own=facts.schema.serialize().to_pybytes().hex(),
        text_from=facts.text_from,
        row_groups=list(facts.row_groups),
        schema_of_all=to_measure.schema_digest,
        rows=values[ROWS],
        values={name_of(one): value for one, value in values.items() if storable(value)},
        profile=profile,
    )


def memory_bytes() -> int:
    """Half of what this process may use, as the rest of it needs some 200 MB, and decoding some for each thread."""
    return min(MEMORY_BYTES, machine_bytes() // 2)


def facts_elsewhere(
    cluster: Cluster, sources: list[SourceSpec], root: Path, files: Sequence[SourceFile]
) -> Iterator[FileFacts]:
    """The facts about files, in their order, found by other machines."""
    tasks = in_tasks([file.bytes for file in files], cluster.at_once)
    return cluster.map(partial(read_facts, sources, root), ([files[at] for at in task] for task in tasks))


def statistics_elsewhere(
    cluster: Cluster, to_measure: FileMeasures, files: Sequence[SourceFile]
) -> Iterator[FileStatistics | None]:
    """The statistics of files, in order, measured by other machines; this process knows the facts about the files."""
    known_files = [(file, file_facts(file, to_measure.sources, to_measure.root)) for file in files]
    tasks = in_tasks([file.bytes for file in files], cluster.at_once)
    return cluster.map(partial(measure_file, to_measure), ([known_files[at] for at in task] for task in tasks))


def read_facts(sources: list[SourceSpec], root: Path, file: SourceFile) -> FileFacts:
    """The facts about a file; work of another machine."""
    _refuse_unreadable(file)
    return file_facts(file, sources, root)


def measure_file(to_measure: FileMeasures, known_file: KnownFile) -> FileStatistics | None:
    """A file's statistics; work of another machine, which reads the file's bytes no more than once for their digest."""
    file, facts = known_file
    _refuse_unreadable(file)
    remember_facts(file, to_measure.sources, facts)
    with scratch.make("contract") as spills:
        # One thread: the cluster already runs as many tasks as should run at once.
        return measured_statistics(to_measure, file, Resources(spills.path, memory_bytes(), threads=1))


def _refuse_unreadable(file: SourceFile) -> None:
    """UsageError for a file that the machine which handed over the work can read, and this one cannot."""
    if file.rev is None and "://" not in file.uri and not os.access(file.uri, os.R_OK):
        raise UsageError(
            f"contract.runner: a worker of the cluster cannot read {file.uri}.",
            remedy="Let source files have the same path on every machine, or put them on S3. If the file was removed, "
            "start a new run.",
        )


def in_tasks(sizes: Sequence[int], at_once: int) -> Iterable[range]:
    """The neighbours in each task: `at_once` tasks of about one size, or more that end at 256 MiB."""
    enough = min(max(sum(sizes) // at_once, LEAST_TASK_BYTES), MOST_TASK_BYTES)
    start = task_bytes = 0
    for at, size in enumerate(sizes):
        task_bytes += size
        if task_bytes >= enough or at + 1 == len(sizes):
            yield range(start, at + 1)
            start, task_bytes = at + 1, 0


def profiled(
    files: list[SourceFile],
    sources: list[SourceSpec],
    root: Path,
    *,
    selection: Selection,
    sensitive: Collection[str],
    on_batch: Callable[[], None] = lambda: None,
    empty: bool = False,
) -> Profile | None:
    """The profile of raw files; None if they have no rows, unless `empty`.

    Args:
        files, sources, root: as for `read_batches`.
        selection: the window.
        sensitive: columns of which only rows and nulls are counted.
        on_batch: called for each batch.
        empty: also files without rows have a profile, of the columns of `selection.schema`.

    Raises: as `read_batches`.
    """
    every = selection.schema
    if every is None:
        every = merged_schema(files, [file_facts(file, sources, root) for file in files])
    listed = any(file.format == "files" for file in files)
    columns = [name for name in every.names if not (listed and name == _CONTENT)]
    whole = replace(selection, schema=every, columns=columns, encoded=True)
    schema = pa.schema([every.field(name) for name in columns])

    def batches(part: list[SourceFile]) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(prefetch(read_batches(part, sources, root=root, selection=whole))) as ahead:
            for batch in ahead:
                on_batch()
                yield batch

    merger = Merger()
    for _, part in groupby(files, key=_part):
        merger.add(profile_of(batches(list(part)), schema, sensitive, num_cores()))
    profile = merger.record()
    return profile if profile.rows or empty else None


def put_profile(writer: Writer, profile: Profile) -> FileEntry:
    """Write a profile into a contract's directory that is about to be sealed.

    Whoever may read the store's shards may read it, so that others' runs can compare their data with it.
    """
    return writer.put(PROFILE_FILE, canonical(profile.to_json()))


def read_profile(store: Store, contract: Ref) -> Profile | None:
    """The profile beside a contract report; None for a report of an earlier Trainwright, which has none.

    CorruptError if the report is gone or its profile was changed; UsageError if the profile's schema is newer.
    """
    try:
        manifest = store.manifest(contract)
    except FileNotFoundError as error:
        raise CorruptError(f"{contract.uri}, the contract report of a dataset, is missing.") from error
    if all(entry.path != PROFILE_FILE for entry in manifest.files):
        return None
    return store.read_sealed_as(manifest, PROFILE_FILE, Profile.from_json, "the profile")


def _part(file: SourceFile) -> str:
    """What is profiled as one part: a file of rows, or all files of one source that are rows or documents."""
    return f"source {file.source}" if file.format in NAMED else file.uri
