"""From source files to shards: two passes over the rows, in bounded memory, on any kind of worker.

The first pass (`training.shard.first_pass`) reads each unit once, decides each row's split, transforms it, draws its
place in the shuffle and puts it into a spill. Then come the checks that need all rows, so that data that cannot be
sharded is refused before the first byte is written. The second pass reads each shard's rows in order and writes it. The
result depends on the files and the settings alone, never on processes, memory or the division of work.

`Workers` do pieces of work in this process or in others; either way the results come in the order of the pieces.
Processes of this machine end when this one is gone, and they carry its mark, so that the code that ends this process
finds them. They are forked from a server that has imported what they need, and share its memory. `Meter` reports the
progress: rows, rows a second and the seconds left.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from data_contracts.errors import NodeLost, OutOfMemory
from data_contracts.handoffs import FileEntry, ShardFile, SourceFile
from data_contracts.messages.raw_data import ShardProgress
from data_contracts.pipeline_spec import ShardsSpec
from infra.cluster_tasks import Cluster, in_order
from infra.contract.quarantine import LeftOut
from infra.machine import num_cores
from infra.processes.processes import die_with_parent, oom_kills
from training import formats
from training.formats.schema import Mismatch, Size, conform_rows
from training.shard.first_pass import (
    Gathered,
    Gatherer,
    Job,
    Transform,
    gather,
    load_transform,
    no_rows,
    sizes_and_schema,
    times_of,
    unlike_batches,
)
from training.shard.spill import Part, batch_bytes_for
from training.shard.splitter import REQUIRED, Documents, Notes, cut, selector
from training.shard.units import (
    TASK_BYTES,
    Earlier,
    NotExtended,
    Source,
    Types,
    Unit,
    most_rows,
    open_source,
    tasks_of,
    without_quarantined,
)

# Below this, starting processes takes longer than they save.
FEW_BYTES = 2**28
# A shard is in memory as read and in order, and a part of it once more while it is encoded.
COPIES = 3

Write = Callable[[str, pa.Table], FileEntry]
Written = tuple[str, int, FileEntry]  # a shard's split, rows and file
MOST_BY_DEFAULT = 4
A = TypeVar("A")
B = TypeVar("B")
Report = Callable[[ShardProgress], None]
EVERY_S = 0.5


@dataclass(frozen=True)
class Sharded:
    """The result.

    Attributes:
        splits: the shards of each split in order, those of an earlier dataset first.
        schema: of the rows in them.
        dropped_rows: rows left out, by reason.
        documents: counted by a split by position.
        types: of the rows and of each file, with which new files are compared.
        counts: rows that were `read`, and those of them that are in no split, by cause: `window`, `quarantined`, `gap`,
            `transform`; or `added`, the rows that the transform made beyond those that it got.
        lacking: columns that some files lack, and how many files do.
        extended: whether the shards of `Sharding.earlier` are included.
        anew: why they are not, although the files were to be added to it.
    """

    splits: dict[str, list[ShardFile]]
    schema: pa.Schema
    dropped_rows: dict[str, int]
    documents: Documents
    types: Types
    counts: dict[str, int]
    lacking: dict[str, int]
    extended: bool
    anew: str = ""


@dataclass(frozen=True)
class Order:
    """One shard to write; may be sent to another process."""

    split: str
    name: str
    part: Part
    schema: pa.Schema


@dataclass(frozen=True)
class Sharding:
    """The files to shard, and how.

    Attributes:
        source: where the files are read from, without a schema.
        write: stores one shard (name, rows in order) and returns its file entry; pickled if processes write.
        folder: for spilled rows; emptied by the caller.
        project: folder of the user's code, if a transform runs.
        one_split: put every row into a split of this name instead of splitting.
        required: splits that must have rows; unused with `one_split`.
        sensitive: columns whose values no message may show.
        earlier: a dataset to which these files' rows are added, if its rows keep their types.
        every: with `earlier`, all files, which are sharded if they do not.
        report: called with the progress of the work.
        cluster: machines that do the work instead of processes of this one; they use the same `folder`.
        left_out: gives the rows that the contract set aside, given how many rows there are at most.
    """

    files: Sequence[SourceFile]
    source: Source
    settings: ShardsSpec
    write: Write
    folder: Path
    project: str | None = None
    one_split: str | None = None
    required: Collection[str] = REQUIRED
    sensitive: Collection[str] = ()
    earlier: Earlier | None = None
    every: Sequence[SourceFile] = ()
    report: Report = lambda record: None
    cluster: Cluster | None = None
    left_out: Callable[[int], LeftOut] | None = None

    @property
    def at_once(self) -> int:
        """The number of pieces of work that run at once."""
        if self.cluster is not None:
            return self.cluster.at_once
        few = sum(file.bytes for file in self.files) < FEW_BYTES
        return self.settings.workers or (1 if few else default_count())


def shard_files(sharding: Sharding) -> Sharded:
    """Write all rows of files as shards called `<split>-<00000><suffix>`; `ShardFile.uri` of new shards is left empty.

    Raises:
        UsageError: the split cannot be made, or the format cannot hold a column; nothing was written.
        UserCodeError: the transform raised, or returned something other than rows.
    """
    try:
        return _shard(sharding)
    except NotExtended as error:
        return replace(_shard(replace(sharding, files=sharding.every, earlier=None)), anew=str(error))


def _shard(sharding: Sharding) -> Sharded:
    settings, count = sharding.settings, sharding.at_once
    # Arrow imports pandas, if it is there, with the first scalar: once here rather than in each process.
    needed = ["training.shard.worker", f"training.formats.{settings.format}", "pandas"]
    with Workers(count, needed, sharding.cluster) as workers:
        meter = Meter(sharding.report)
        map_files = partial(workers.map, together=math.ceil(len(sharding.files) / count))
        opened = open_source(sharding.files, sharding.source, map_files, sharding.earlier, sharding.every)
        source, units = opened.source, opened.units
        left_out = None if sharding.left_out is None else sharding.left_out(most_rows(units))
        if left_out is not None:
            units = without_quarantined(units, left_out)
        run_bytes = max(2**20, min(2**26, settings.memory_bytes // (8 * workers.sharing)))
        job = Job(
            source=source,
            settings=settings,
            folder=sharding.folder,
            run_bytes=run_bytes,
            batch_bytes=batch_bytes_for(sum(unit.bytes for unit in units), run_bytes, settings.target_size_bytes),
            one_split=sharding.one_split,
            sensitive=tuple(sharding.sensitive),
            project=sharding.project,
        )
        gathered = _FirstPass(job, units, workers, meter).run()
        gone = None if left_out is None else left_out.rows
        sizes, schema = sizes_and_schema(gathered, job, units, sharding.required, sharding.earlier, gone)
        formats.get(settings.format).refuse(schema.empty_table())
        workers.release()
        splits = _second_pass(sharding, workers, meter, gathered, sizes, schema)
    new, earlier = gathered.notes.dropped | ({} if gone is None else {"quarantined": len(gone)}), sharding.earlier
    stored = gathered.facts if earlier is None else earlier.stored_with(gathered.facts)
    dropped = Counter(earlier.dropped_rows if earlier is not None else {})
    dropped.update(new)
    return Sharded(
        splits,
        schema,
        dict(dropped),
        gathered.notes.documents,
        Types(source.schema, stored, opened.facts),
        dict(Counter(earlier.counts if earlier is not None else {}) + _counts(gathered, new, sizes)),
        opened.lacking,
        extended=earlier is not None,
    )


def _counts(gathered: Gathered, dropped: dict[str, int], sizes: dict[str, Size]) -> Counter[str]:
    made = sum(size.rows for size in sizes.values()) - sum(gathered.assigned.values())
    counts = Counter(gathered.tally)
    counts.update(dropped)
    counts.update({"transform": -made} if made < 0 else {"added": made})
    return counts


def _second_pass(
    sharding: Sharding, workers: Workers, meter: Meter, gathered: Gathered, sizes: dict[str, Size], schema: pa.Schema
) -> dict[str, list[ShardFile]]:
    """Write each split's shards and return what the splits hold, shards of an earlier dataset first."""
    settings, earlier = sharding.settings, sharding.earlier
    meter.begin("writing", sum(size.rows for size in sizes.values()))
    splits = {name: list(earlier.splits.get(name, [])) if earlier is not None else [] for name in sizes}
    most = max(1, settings.memory_bytes // (COPIES * settings.target_size_bytes)) if gathered.rows.on_disk else 1
    if sharding.cluster is not None and gathered.rows.on_disk:
        most = workers.count  # each process on its own machine, or in its own share of one
    orders = _orders(sizes, gathered, schema, settings, {name: len(shards) for name, shards in splits.items()})
    shards = sum(num_shards(one.rows, one.logical_bytes(schema), settings.target_size_bytes) for one in sizes.values())
    together = max(1, min(TASK_BYTES // settings.target_size_bytes, shards // workers.count))
    work = partial(write_shard, sharding.write)
    threads = min(most, default_count()) if workers.count == 1 and settings.workers is None else 1
    written = _in_threads(work, orders, threads) if threads > 1 else workers.map(work, orders, most, together)
    for split, rows, entry in written:
        splits[split].append(ShardFile(uri="", path=entry.path, rows=rows, bytes=entry.bytes, blake3=entry.blake3))
        meter.add(rows)
    return splits


def _in_threads(work: Callable[[Order], Written], orders: Iterator[Order], threads: int) -> Iterator[Written]:
    """The results of `work` in order. Arrow does most of it, and lets go of the interpreter's lock."""
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(pool.submit, work, orders, threads)


def write_shard(write: Write, order: Order) -> Written:
    """Read a shard's rows in order and store them; returns its split, rows and file. One process's work in the second
    pass.
    """
    entry = write(order.name, order.part.read(partial(conform_rows, schema=order.schema), order.schema))
    return order.split, order.part.rows, entry


def num_shards(rows: int, logical_bytes: int, target_size_bytes: int) -> int:
    """The number of shards for these rows; each shard has at least one row."""
    return max(1, min(rows, math.ceil(logical_bytes / target_size_bytes)))


def bounds(num_rows: int, shards: int) -> list[int]:
    """`shards` + 1 row numbers that cut `num_rows` rows into shards whose sizes differ by at most one row."""
    return [num_rows * index // shards for index in range(shards + 1)]


class _FirstPass:
    """The first pass over units, after a pass over the times alone where a split needs them."""

    def __init__(self, job: Job, units: Sequence[Unit], workers: Workers, meter: Meter) -> None:
        self.job, self._units, self._workers, self._meter = job, units, workers, meter
        # On a cluster, little work is divided too: tasks are small enough that every worker has some.
        share = sum(unit.bytes for unit in units) // workers.count
        self._tasks = tasks_of(units, share if workers.sharing < workers.count else None)
        known = [unit.rows for unit in units]
        self._total = sum(rows or 0 for rows in known) if None not in known and job.source.window is None else None

    def run(self) -> Gathered:
        if self.job.one_split is None:
            self.job.splitter()  # unusable columns are refused before any row is read
            split = self.job.settings.split
            if split.time is not None and not split.boundaries:
                self.job = replace(self.job, bounds=self._bounds())
        self._meter.begin("reading", self._total, sum(unit.bytes for unit in self._units))
        # A transform that cannot be imported is reported once, before rows are read.
        transform = load_transform(self.job.settings, self.job.project)
        if self._workers.count == 1 or len(self._tasks) < 2:
            return self._here(transform)
        gathered = Gathered()
        for task, one in zip(self._tasks, self._workers.map(partial(gather, self.job), self._tasks), strict=True):
            try:
                gathered.merge(one)
            except Mismatch as error:
                unlike = unlike_batches(error)
                unlike.message = f"{unlike.message.rstrip('.')}, from {task[0].files[0].uri} on."
                raise unlike from error
            self._meter.add(sum(one.unit_rows), sum(unit.bytes for unit in task))
        return gathered

    def _here(self, transform: Transform | None) -> Gathered:
        """Run everything in this process: what fits stays in memory."""
        job = replace(self.job, keep_bytes=self.job.settings.memory_bytes // 2)
        return Gatherer(job, transform, self._meter.add, ahead=True).work(self._units)

    def _bounds(self) -> tuple[int, ...]:
        tasks = self._tasks
        paths = [self.job.folder / f"times-{number}" for number in range(len(tasks))]
        self._meter.begin("reading times", self._total, sum(unit.bytes for unit in self._units))
        notes, num_rows = Notes(), 0
        for task, (rows, noted) in zip(
            tasks, self._workers.map(partial(times_of, self.job), list(zip(tasks, paths, strict=True))), strict=True
        ):
            notes.merge(noted)
            num_rows += rows
            self._meter.add(rows, sum(unit.bytes for unit in task))
        split, sensitive = self.job.settings.split, self.job.sensitive
        if notes.spoilt:
            return ()  # the first pass will name the row
        if not num_rows:
            raise no_rows()
        cuts = cut(selector(paths, self.job.folder / "times"), num_rows, split, sensitive)
        for path in paths:
            path.unlink()
        return tuple(cuts)


def _orders(
    sizes: dict[str, Size], gathered: Gathered, schema: pa.Schema, settings: ShardsSpec, there: dict[str, int]
) -> Iterator[Order]:
    """All shards in order: each split's rows by their keys, cut evenly. `there`: shards that a split has already."""
    suffix = formats.get(settings.format).SUFFIX
    for name, size in sizes.items():
        if not size.rows:
            continue
        shards = num_shards(size.rows, size.logical_bytes(schema), settings.target_size_bytes)
        for index, (start, stop) in enumerate(pairwise(bounds(size.rows, shards)), there[name]):
            yield Order(name, f"{name}-{index:05d}{suffix}", gathered.rows.part(name, start, stop), schema)


class Workers(AbstractContextManager["Workers"]):
    """Up to `count` processes, started when there is work for two; a context that ends them.

    Args:
        preload: modules that every process needs.
        elsewhere: does the work on other machines instead, `count` pieces at once.
    """

    def __init__(self, count: int, preload: Sequence[str] = (), elsewhere: Cluster | None = None) -> None:
        self.count, self._preload, self._elsewhere = count, list(preload), elsewhere
        self._pool: ProcessPoolExecutor | None = None
        self._oom_kills = oom_kills()

    @property
    def sharing(self) -> int:
        """How many processes share one machine's memory and its limit."""
        return 1 if self._elsewhere is not None else self.count

    def map(
        self, work: Callable[[A], B], items: Iterable[A], most: int | None = None, together: int = 1
    ) -> Iterator[B]:
        """`work` of each item, at most `most` at once; it is pickled unless this process does all of it.

        Elsewhere, where handing over a piece of work costs more, `together` items make one piece.

        Raises the first item's error first, even if another process failed earlier; OutOfMemory or NodeLost if a
        process was killed.
        """
        most = min(self.count, most or self.count)
        if most == 1 or (isinstance(items, Sized) and len(items) < 2):
            yield from map(work, items)
            return
        if self._elsewhere is not None:
            yield from self._elsewhere.map(work, _chunks(items, together), most)
            return
        try:
            yield from in_order(self._started().submit, work, items, most)
        except BrokenProcessPool as error:
            if oom_kills() > self._oom_kills:
                raise OutOfMemory(
                    "The kernel killed a process of the shard stage because memory ran out.",
                    remedy="Lower shards.workers or shards.memory_bytes, or give the machine more memory.",
                ) from error
            raise NodeLost("A process of the shard stage was killed from outside.") from error

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End the processes, and free the memory that their allocators hold; the next work starts new processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(self._preload)
            self._pool = ProcessPoolExecutor(self.count, context, _begin)
        return self._pool


def default_count() -> int:
    """As many as there are CPUs, at most four."""
    return max(1, min(MOST_BY_DEFAULT, num_cores()))


def _chunks(items: Iterable[A], size: int) -> Iterator[list[A]]:
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk


def _begin() -> None:
    # The kernel ends a process with the server that forked it. The server waits for its processes, so they watch their
    # parent.
    die_with_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # One thread each: the processes already run in parallel.
    pa.set_cpu_count(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(NodeLost.exit_code)


class Meter:
    """Counts rows through the phases of some work.

    Args:
        report: called at the end of a phase, and before that every half second at most.
    """

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self.begin("", None)

    def begin(self, phase: str, total: int | None, total_bytes: int = 0) -> None:
        """Begin a phase of `total` rows; if that is unknown, `total_bytes` measures the work."""
        self._phase, self._total, self._total_bytes = phase, total, total_bytes
        self._rows = self._bytes = 0
        self._started = self._told = self._clock()

    def add(self, rows: int, of_bytes: int = 0) -> None:
        """Add rows that are done, and the bytes that they came from."""
        self._rows += rows
        self._bytes += of_bytes
        now = self._clock()
        done = self._rows == self._total or (self._bytes and self._bytes == self._total_bytes)
        if not done and now - self._told < EVERY_S:
            return
        self._told = now
        seconds = max(now - self._started, 1e-9)
        share = self._rows / self._total if self._total else self._bytes / max(self._total_bytes, 1)
        self._report(
            ShardProgress(
                phase=self._phase,
                rows=self._rows,
                total=self._total,
                rows_per_s=round(self._rows / seconds),
                share=round(share, 4),
                seconds_left=round(seconds * (1 - share) / share, 1) if share else None,
            )
        )
