"""Takes rows under (group, 64-bit key), and reads them back in the order of their keys, in bounded memory.

This is an external merge sort. Rows wait until a *run* is full. A run is sorted by group and key *range* (the key's top
16 bits), and written as an Arrow stream of small batches, whose places and first ranges are remembered. Counts per
range say which range holds the rows of any ranks, so a reader takes only those batches of every run, and sorts them by
the whole key. Keys are digests or draws, so the ranges are even. Rows of one key keep the order in which they were put
in, if `merge` gets the parts in that order. While everything fits, runs stay in memory; their place changes no result.

A drawn key gives the order in which rows are written: a pure function of the seed, the split, the unit that the row
came from and the row's number in it, so keys can be drawn anywhere and in any order. The draw is SplitMix64 (Steele,
Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants as in Vigna's public domain
splitmix64.c), one stream a unit and split.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.canonical import canonical

# The smallest read from a run: smaller batches waste fewer bytes, larger batches have less overhead.
BATCH_BYTES = 2**15
LARGEST_BATCH_BYTES = 2**18
BATCH_ROWS = 2**14
# A batch of this size is not copied for the sake of the objects around its columns.
_LARGE_BYTES = 2**16
# What is written to a run's file at once: a batch consists of many small buffers.
_WRITE_BYTES = 2**20

# Brings the waiting tables of a run to one schema.
Unify = Callable[[Sequence[pa.Table]], list[pa.Table]]
Conform = Callable[[pa.Table], pa.Table]
# A key's range is its top 16 bits.
RANGES = 2**16
_SHIFT = np.uint64(48)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST = np.uint64(31)


@dataclass(frozen=True)
class Slice:
    """Bytes `start` to `stop` of a run's file, which are whole batches, or rows of a run in memory.

    Wanted are ranges `low` to `high`; the file begins with `head` bytes that hold the schema.
    """

    low: int
    high: int
    path: str = ""
    head: int = 0
    start: int = 0
    stop: int = 0
    kept: tuple[NDArray[np.uint64], pa.Table] | None = None

    def read(self) -> tuple[NDArray[np.uint64], pa.Table]:
        """Keys, (rows,), and rows in the ranges, in their order in the run."""
        if self.kept is not None:
            return self.kept
        batches = list(pa.ipc.open_stream(pa.BufferReader(self._bytes())))
        rows = pa.Table.from_batches(batches)
        if self.stop - self.start < len(batches) * _LARGE_BYTES:
            # Joined at once: the objects around a small batch's columns take more memory than their values.
            rows = rows.combine_chunks()
        keys = rows.column(0).to_numpy()
        first, last = ranges_between(key_ranges(keys), self.low, self.high)
        return keys[first:last], rows.remove_column(0).slice(first, last - first)

    def _bytes(self) -> pa.Buffer:
        """The schema and the batches. They are not mapped: pages of a mapped file count as this process's memory."""
        buffer = pa.allocate_buffer(self.head + self.stop - self.start)
        view = memoryview(buffer)
        with pa.OSFile(self.path) as file:
            file.readinto(view[: self.head])
            file.seek(self.start)
            file.readinto(view[self.head :])
        return buffer


@dataclass(frozen=True)
class Part:
    """The rows of some ranks of a group: where they lie, and how many rows precede them in the same key range."""

    slices: list[Slice]
    skip: int
    rows: int

    def read(self, conform: Conform, schema: pa.Schema) -> pa.Table:
        """The rows in the order of their keys, in one chunk, each piece brought to `schema` by `conform`."""
        pieces = [one.read() for one in self.slices]
        if not pieces:
            return schema.empty_table()
        keys = np.concatenate([keys for keys, _ in pieces])
        order = key_order(keys)[self.skip : self.skip + self.rows]
        tables = [conform(table) for _, table in pieces]
        del pieces, keys
        rows = _taken(tables, order)
        # The allocator keeps freed memory for later, but what is written next needs other sizes.
        pa.default_memory_pool().release_unused()
        return rows


@dataclass
class Run:
    """One sorted run: per group where its batches begin and the first range of each, or keys and rows in memory."""

    path: str = ""
    head: int = 0
    batches: dict[str, tuple[NDArray[np.int64], NDArray[np.uint16]]] = field(default_factory=dict)
    kept: dict[str, tuple[NDArray[np.uint64], pa.Table]] = field(default_factory=dict)

    def locate(self, group: str, low: int, high: int) -> Slice | None:
        """The slice that holds the ranges low <= range < high; None if there is none."""
        if group in self.kept:
            keys, rows = self.kept[group]
            first, last = ranges_between(key_ranges(keys), low, high)
            kept = (keys[first:last], rows.slice(first, last - first))
            return Slice(low, high, kept=kept) if first < last else None
        if group not in self.batches:
            return None
        places, firsts = self.batches[group]
        first, stop = ranges_between(firsts, low, high)
        # A batch may begin below `low` and end above it, so the batch before counts too.
        start = max(0, first - 1)
        return Slice(low, high, self.path, self.head, *places[[start, stop]].tolist()) if start < stop else None


@dataclass
class Spilled:
    """Runs in the order in which their rows were put in, and per group how many rows each key range has."""

    runs: list[Run] = field(default_factory=list)
    counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def merge(self, other: Spilled) -> None:
        """Add rows that were put in later."""
        self.runs += other.runs
        for group, counts in other.counts.items():
            self.counts[group] = self.counts[group] + counts if group in self.counts else counts

    def rows(self, group: str) -> int:
        """Rows of a group."""
        return int(self.counts[group].sum()) if group in self.counts else 0

    def part(self, group: str, start: int, stop: int) -> Part:
        """The part with the rows of ranks `start` to `stop` of a group."""
        if start == stop:
            return Part([], 0, 0)
        ends = np.cumsum(self.counts[group])
        first, last = (int(np.searchsorted(ends, rank, "right")) for rank in (start, stop - 1))
        slices = [found for run in self.runs if (found := run.locate(group, first, last + 1)) is not None]
        before = int(ends[first - 1]) if first else 0
        return Part(slices, start - before, stop - start)

    def ranges(self, group: str, most_rows: int) -> list[tuple[int, int]]:
        """Ranks that cut a group between key ranges into parts of about `most_rows` rows: no key is in two parts."""
        ends = np.cumsum(self.counts[group])
        cuts = [0]
        for end in ends[np.flatnonzero(np.diff(ends // most_rows, append=ends[-1] // most_rows + 1))].tolist():
            if end > cuts[-1]:
                cuts.append(end)
        return list(pairwise(cuts))

    @property
    def on_disk(self) -> bool:
        """Whether a run was written to a file."""
        return any(run.path for run in self.runs)


class Spill:
    """Takes rows in.

    Args:
        folder: where runs are written; names are drawn, so several processes may share it.
        run_bytes: rows that wait for a run to be full; making the run takes twice as much.
        keep_bytes: runs that may stay in memory; 0 writes each to a file.
        unify: brings tables of one run to one schema; by default they must have one.
        batch_bytes: rows that are read from a file at once; see `batch_bytes_for`.
    """

    def __init__(
        self,
        folder: Path,
        run_bytes: int,
        keep_bytes: int = 0,
        unify: Unify = list,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self._folder, self._run_bytes, self._keep_bytes, self._unify = folder, run_bytes, keep_bytes, unify
        self._batch_bytes = batch_bytes
        self._numbers: dict[str, int] = {}  # of groups
        self._waiting: list[tuple[NDArray[np.int16], NDArray[np.uint64], pa.Table]] = []
        self._bytes = self._kept_bytes = 0
        self._spilled = Spilled()

    def put(self, group: str, keys: NDArray[np.uint64], rows: pa.Table) -> None:
        """Add rows of one group with their keys, (rows,) uint64."""
        self.put_mixed([group], np.zeros(len(keys), np.int16), keys, rows)

    def put_mixed(
        self, groups: Sequence[str], of_row: NDArray[np.int16], keys: NDArray[np.uint64], rows: pa.Table
    ) -> None:
        """Add rows with their keys; `of_row` is each row's index into `groups`."""
        if not len(keys):
            return
        numbers = [self._numbers.setdefault(group, len(self._numbers)) for group in groups]
        if numbers != list(range(len(numbers))):
            of_row = np.array(numbers, np.int16)[of_row]
        self._waiting.append((of_row, keys, rows))
        self._bytes += rows.nbytes + keys.nbytes
        if self._bytes >= self._run_bytes:
            self._make_run()

    def close(self) -> Spilled:
        """All rows that were put in."""
        self._make_run()
        return self._spilled

    def _make_run(self) -> None:
        if not self._waiting:
            return
        of_row, keys = (np.concatenate([piece[index] for piece in self._waiting]) for index in (0, 1))
        tables = self._unify([rows for _, _, rows in self._waiting])
        self._waiting = []
        # By range, then by group: each is a radix sort of 16 bits, which is stable.
        order = np.argsort(key_ranges(keys), kind="stable")
        order = order[np.argsort(of_row[order], kind="stable")]
        keys, rows, run = keys[order], _taken(tables, order), Run()
        ends = np.cumsum(np.bincount(of_row, minlength=len(self._numbers))).tolist()
        for group, start, stop in zip(self._numbers, [0, *ends[:-1]], ends, strict=True):
            if start == stop:
                continue
            run.kept[group] = (keys[start:stop], rows.slice(start, stop - start))
            counts = np.bincount(key_ranges(keys[start:stop]), minlength=RANGES)
            self._spilled.merge(Spilled(counts={group: counts}))
        self._spilled.runs.append(run)
        self._kept_bytes += self._bytes
        self._bytes = 0
        if self._kept_bytes > self._keep_bytes:
            self._spilled.runs = [self._written(one) if one.kept else one for one in self._spilled.runs]
            self._kept_bytes = self._keep_bytes = 0
            pa.default_memory_pool().release_unused()

    def _written(self, run: Run) -> Run:
        written = Run(str(self._folder / f"{uuid.uuid4().hex}.arrow"))
        rows_of_any = next(iter(run.kept.values()))[1]
        schema = rows_of_any.schema.insert(0, pa.field("", pa.uint64()))
        with (
            pa.output_stream(written.path, buffer_size=_WRITE_BYTES) as file,
            pa.ipc.new_stream(file, schema) as writer,
        ):
            writer.write_batch(pa.RecordBatch.from_pylist([], schema))  # the schema is written with the first batch
            written.head = file.tell()
            for group, (keys, rows) in run.kept.items():
                row_bytes = max(1, (rows.nbytes + keys.nbytes) // len(keys))
                step = min(BATCH_ROWS, max(1, self._batch_bytes // row_bytes))
                whole = rows.add_column(0, schema.field(0), pa.array(keys)).to_batches()[0]
                places = [file.tell()]
                for start in range(0, len(keys), step):
                    writer.write_batch(whole.slice(start, step))
                    places.append(file.tell())
                written.batches[group] = (np.array(places, np.int64), key_ranges(keys[::step]))
        return written


def batch_bytes_for(all_bytes: int, run_bytes: int, part_bytes: int) -> int:
    """The bytes of a batch with which a reader of a part finds about four in each run; more would be read in vain.

    Args:
        all_bytes: about all rows.
        run_bytes: of a run.
        part_bytes: of the parts that are read.
    """
    return min(LARGEST_BATCH_BYTES, max(BATCH_BYTES, part_bytes * run_bytes // max(1, all_bytes) // 4))


def _taken(tables: list[pa.Table], order: NDArray[np.int64]) -> pa.Table:
    """The rows of tables, one after another, in an order, each column in one chunk; empties `tables`."""
    whole = pa.concat_tables(tables)
    tables.clear()
    schema, columns, at = whole.schema, whole.columns, pa.array(order)
    del whole
    for index, column in enumerate(columns):
        # Column by column, so that only one exists in addition to the rows before and after.
        columns[index] = None
        columns[index] = pc.take(column.combine_chunks(), at, boundscheck=False)  # an order has no other places
    return pa.Table.from_arrays(columns, schema=schema)


def shuffle_keys(start: np.uint64, first_row: int, rows: int) -> NDArray[np.uint64]:
    """The keys of `rows` rows from row `first_row` on, (rows,) uint64; the keys of one stream are all different."""
    drawn = np.arange(first_row + 1, first_row + rows + 1, dtype=np.uint64) * _GAMMA + start
    for shift, factor in _MIX:
        drawn = (drawn ^ (drawn >> shift)) * factor
    return drawn ^ (drawn >> _LAST)


def stream_start(seed: int, split: str, unit: int, unit_digest: str) -> np.uint64:
    """The start of a unit's stream for a split."""
    words = ["trainwright shuffle", seed, split, unit, unit_digest]
    return np.frombuffer(blake3(canonical(words)).digest(8), "<u8")[0]


def key_ranges(keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """The range of each key (rows,): its top 16 bits."""
    return (keys >> _SHIFT).astype(np.uint16)


def key_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The order of keys; equal keys stay in the order in which they were put in."""
    order = np.argsort(keys)  # vectorised, but not stable
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def ranges_between(ranges: NDArray[np.uint16], low: int, high: int) -> tuple[int, int]:
    """The part of sorted ranges with low <= range < high."""
    last = len(ranges) if high >= RANGES else int(np.searchsorted(ranges, np.uint16(high), "left"))
    return int(np.searchsorted(ranges, np.uint16(low), "left")), last
