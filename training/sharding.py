"""From source files to shards: two passes over the rows, in bounded memory, whatever does the work.

The first pass (`training.gather`) reads each unit once, decides each row's split, transforms it, draws its place in
the shuffle and puts it into a spill. What only all rows can tell is then judged, so that what cannot be sharded is
refused before the first byte. The second pass reads each shard's rows in order and writes it. The result depends on
the files and the settings alone, never on processes, memory or which of them did what.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_contracts.errors import UsageError
from data_contracts.handoffs import FileEntry, ShardFile, SourceFile
from data_contracts.spec import ShardsSpec
from training import formats
from training.cluster import Cluster
from training.formats.facts import Mismatch, Size
from training.formats.normal import holds, settle
from training.formats.schema import columns_of
from training.gather import Gathered, Gatherer, Job, Transform, gather, load_transform, times_of, unlike_batches
from training.progress import Meter, Report
from training.sides import find_shared, refuse_shared
from training.spill import Part
from training.split import REQUIRED, Notes, in_order, judge, keys_of, refuse_empty
from training.times import cut, selector
from training.units import TASK_BYTES, Source, Unit, open_source, tasks_of
from training.workers import Workers, default_count

# What every process needs; pandas is imported by pyarrow, when it first makes an array of NumPy's.
PRELOADED = ("training.shard_worker", "training.formats.parquet", "training.formats.tfrecord", "pandas")
# Below this, starting processes takes longer than they save.
FEW_BYTES = 2**28
# A shard is held as it was read and in order, and while it is encoded a part of it once more.
COPIES = 3

Write = Callable[[str, pa.Table], FileEntry]


@dataclass(frozen=True)
class Earlier:
    """A dataset whose shards are named again: what its splits hold, and the schema that new rows must have."""

    splits: dict[str, list[ShardFile]]
    schema: pa.Schema
    dropped_rows: dict[str, int]


@dataclass(frozen=True)
class Sharded:
    """What was written: the shards of each split in order, the schema of their rows, and the rows left out."""

    splits: dict[str, list[ShardFile]]
    schema: pa.Schema
    dropped_rows: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """One shard to write; may be sent to another process."""

    split: str
    name: str
    part: Part
    schema: pa.Schema


def shard_files(
    files: Sequence[SourceFile],
    source: Source,
    settings: ShardsSpec,
    write: Write,
    folder: Path,
    *,
    project: str | None = None,
    one_split: str | None = None,
    required: Collection[str] = REQUIRED,
    sensitive: Collection[str] = (),
    earlier: Earlier | None = None,
    report: Report = lambda record: None,
    cluster: Cluster | None = None,
) -> Sharded:
    """Write all rows of files as shards called `<split>-<00000><suffix>`; `ShardFile.uri` of new ones is left empty.

    Args:
        source: where the files are read from, without a schema.
        write: stores one shard (name, rows in order) and says what it stored; pickled if processes write.
        folder: for spilled rows; emptied by the caller.
        project: folder of the user's code, if a transform runs.
        one_split: put every row into a split of this name instead of splitting.
        required: splits that must have rows; unused with `one_split`.
        sensitive: columns whose values no message may show.
        earlier: a dataset to which these files' rows are added.
        report: told how far the work is.
        cluster: machines that do the work instead of processes of this one; `folder` is theirs too.

    Raises:
        UsageError: the split cannot be made, or the format cannot hold a column; nothing was written.
        UserCodeError: the transform raised or returned something else than rows.
    """
    few = sum(file.bytes for file in files) < FEW_BYTES
    count = cluster.at_once if cluster is not None else settings.workers or (1 if few else default_count())
    with Workers(count, PRELOADED, cluster) as workers:
        meter = Meter(report)
        source, units = open_source(files, source, partial(workers.map, together=math.ceil(len(files) / count)))
        run_bytes = max(2**20, min(2**26, settings.memory_bytes // (8 * workers.sharing)))
        job = Job(source, settings, folder, run_bytes, 0, one_split, None, tuple(sensitive), project)
        found = _FirstPass(job, units, workers, meter).run()
        sizes, schema = _judged(found, job, units, required, earlier)
        formats.get(settings.format).refuse(found.facts.witness(schema))
        workers.release()
        meter.begin("writing", sum(size.rows for size in sizes.values()))
        splits = {name: list(earlier.splits.get(name, [])) if earlier is not None else [] for name in sizes}
        most = max(1, settings.memory_bytes // (COPIES * settings.target_size_bytes)) if found.rows.on_disk else 1
        if cluster is not None and found.rows.on_disk:
            most = count  # each on its own machine or its own share of one
        orders = _orders(sizes, found, schema, settings, {name: len(shards) for name, shards in splits.items()})
        shards = sum(
            num_shards(one.rows, one.logical_bytes(schema), settings.target_size_bytes) for one in sizes.values()
        )
        together = max(1, min(TASK_BYTES // settings.target_size_bytes, shards // count))
        for split, rows, entry in workers.map(partial(write_shard, write), orders, most, together):
            splits[split].append(ShardFile(uri="", path=entry.path, rows=rows, bytes=entry.bytes, blake3=entry.blake3))
            meter.add(rows)
    dropped = Counter(earlier.dropped_rows if earlier is not None else {})
    dropped.update(found.notes.dropped)
    return Sharded(splits, schema, dict(dropped))


def write_shard(write: Write, order: Order) -> tuple[str, int, FileEntry]:
    """Read a shard's rows in order and store them: its split, rows and file. What a process does in the second pass."""
    entry = write(order.name, order.part.read(partial(settle, schema=order.schema), order.schema))
    return order.split, order.part.rows, entry


def num_shards(rows: int, logical_bytes: int, target_size_bytes: int) -> int:
    """How many shards rows make; each has at least one row."""
    return max(1, min(rows, math.ceil(logical_bytes / target_size_bytes)))


def bounds(num_rows: int, shards: int) -> list[int]:
    """`shards` + 1 row numbers that cut `num_rows` rows into shards whose sizes differ by one at most."""
    return [num_rows * index // shards for index in range(shards + 1)]


class _FirstPass:
    """The first pass over units, after one over the times alone where a split needs them."""

    def __init__(self, job: Job, units: Sequence[Unit], workers: Workers, meter: Meter) -> None:
        self.job, self._units, self._workers, self._meter = job, units, workers, meter
        # On a cluster, little work is divided too: a task is small so that all have some.
        share = sum(unit.bytes for unit in units) // workers.count
        self._tasks = tasks_of(units, share if workers.sharing < workers.count else None)
        known = [unit.rows for unit in units]
        self._total = sum(rows or 0 for rows in known) if None not in known and job.source.window is None else None

    def run(self) -> Gathered:
        if self.job.one_split is None:
            self.job.splitter()  # columns that will not do are refused before anything is read
            split = self.job.settings.split
            if split.time is not None and not split.boundaries:
                self.job = replace(self.job, bounds=self._bounds())
        self._meter.begin("reading", self._total, sum(unit.bytes for unit in self._units))
        # A transform that cannot be imported is told before rows are read, once.
        transform = load_transform(self.job.settings, self.job.project)
        if self._workers.count == 1 or len(self._tasks) < 2:
            return self._here(transform)
        found = Gathered()
        for task, one in zip(self._tasks, self._workers.map(partial(gather, self.job), self._tasks), strict=True):
            try:
                found.merge(one)
            except Mismatch as error:
                raise unlike_batches(error) from error
            self._meter.add(sum(one.unit_rows), sum(unit.bytes for unit in task))
        return found

    def _here(self, transform: Transform | None) -> Gathered:
        """All in this process: what fits stays in memory."""
        job = replace(self.job, keep_bytes=self.job.settings.memory_bytes // 2)
        return Gatherer(job, transform, self._meter.add).work(self._units)

    def _bounds(self) -> tuple[int, ...]:
        tasks = self._tasks
        paths = [self.job.folder / f"times-{number}" for number in range(len(tasks))]
        self._meter.begin("reading times", self._total, sum(unit.bytes for unit in self._units))
        notes, num_rows = Notes(), 0
        for task, (rows, noted) in zip(
            tasks, self._workers.map(partial(_times, self.job), list(zip(tasks, paths, strict=True))), strict=True
        ):
            notes.merge(noted)
            num_rows += rows
            self._meter.add(rows, sum(unit.bytes for unit in task))
        split, sensitive = self.job.settings.split, self.job.sensitive
        if notes.spoilt:
            return ()  # the first pass will say which row
        if not num_rows:
            raise _no_rows()
        found = cut(selector(paths), num_rows, split, sensitive)
        for path in paths:
            path.unlink()
        return tuple(found)


def _times(job: Job, task: tuple[list[Unit], Path]) -> tuple[int, Notes]:
    return times_of(job, *task)


def _judged(
    found: Gathered, job: Job, units: Sequence[Unit], required: Collection[str], earlier: Earlier | None
) -> tuple[dict[str, Size], pa.Schema]:
    """The splits in order with their sizes, and the schema; UsageError for what only all rows could tell."""
    if not sum(found.unit_rows):
        raise _no_rows()
    first_rows = [0, *accumulate(found.unit_rows)]
    split = job.settings.split
    there = {name: sum(shard.rows for shard in shards) for name, shards in earlier.splits.items()} if earlier else {}
    if job.one_split is not None:
        names, required = [job.one_split], (job.one_split,)
    else:
        judge(found.notes, split, first_rows, job.sensitive)
        shared = find_shared(found.sides, first_rows)
        if shared is not None:
            values = _row_at(job.source, units, first_rows, keys_of(split), shared.row)
            raise refuse_shared(shared, split, values, job.sensitive)
        names = in_order({*found.assigned, *there}) if split.column is not None else job.splitter().names
    assigned = {name: found.assigned.get(name, 0) + there.get(name, 0) for name in names}
    refuse_empty(assigned, required, "shards.split")
    sizes = {name: found.facts.sizes.get(name, Size()) for name in names}
    if job.settings.transform is not None:
        kept = {name: size.rows + there.get(name, 0) for name, size in sizes.items()}
        refuse_empty(kept, required, "shards.transform")
    return sizes, _schema(found, earlier)


def _schema(found: Gathered, earlier: Earlier | None) -> pa.Schema:
    if found.facts.form is None:
        if earlier is not None:
            return earlier.schema
        raise _no_rows()
    schema = found.facts.schema()
    if earlier is None:
        return schema
    have, want = columns_of(schema), columns_of(earlier.schema)
    for name in [*want, *have]:
        if not (name in have and name in want and holds(earlier.schema.field(name), found.facts.form.field(name))):
            raise UsageError(
                f"shards.append: the new files have column {name!r} as {have.get(name, 'nothing')}, but the dataset "
                f"to which they are added has it as {want.get(name, 'nothing')}.",
                remedy="Give the new files the columns of the old ones, or leave shards.append out to shard all anew.",
            )
    return earlier.schema


def _orders(
    sizes: dict[str, Size], found: Gathered, schema: pa.Schema, settings: ShardsSpec, there: dict[str, int]
) -> Iterator[Order]:
    """All shards in order: each split's rows by their keys, cut evenly. `there`: shards that a split has already."""
    suffix = formats.get(settings.format).SUFFIX
    for name, size in sizes.items():
        if not size.rows:
            continue
        shards = num_shards(size.rows, size.logical_bytes(schema), settings.target_size_bytes)
        for index, (start, stop) in enumerate(pairwise(bounds(size.rows, shards)), there[name]):
            yield Order(name, f"{name}-{index:05d}{suffix}", found.rows.part(name, start, stop), schema)


def _row_at(
    source: Source, units: Sequence[Unit], first_rows: Sequence[int], columns: list[str], row: int
) -> dict[str, Any]:
    """Some columns of one row, read again."""
    unit = int(np.searchsorted(first_rows, row, "right")) - 1
    at = row - first_rows[unit]
    for batch in source.read(units[unit], columns):
        if at < batch.num_rows:
            return batch.slice(at, 1).to_pylist()[0]
        at -= batch.num_rows
    raise AssertionError(f"row {row} was there in the first pass")


def _no_rows() -> UsageError:
    return UsageError(
        "The source has no rows to shard.", remedy="Look at data.source and at the window, if there is one."
    )
