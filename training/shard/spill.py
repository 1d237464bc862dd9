"""Takes rows under (group, 64-bit key), and reads them back in the order of their keys, in bounded memory.

This is an external merge sort. Rows wait until a *run* is full; a run is sorted by group and key and written as an
Arrow file of small batches, whose first keys are remembered. Counts per key range (the key's top 16 bits) say which
range holds the rows of any ranks, so a reader takes only those batches of every run, and sorts them once more. Keys are
digests or draws, so the ranges are even. Rows of one key keep the order in which they were put in, if `merge` gets the
parts in that order. While everything fits, runs stay in memory; their place changes no result.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

RANGES = 2**16
_SHIFT = np.uint64(48)
# The smallest read from a run: smaller batches waste fewer bytes, larger batches have less overhead.
BATCH_BYTES = 2**15
BATCH_ROWS = 2**14

# Brings the waiting tables of a run to one schema.
Unify = Callable[[Sequence[pa.Table]], list[pa.Table]]
Settle = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Slice:
    """Batches `start` to `stop` of a run's file, or rows of a run in memory, and the wanted key range."""

    low: int
    high: int
    path: str = ""
    start: int = 0
    stop: int = 0
    kept: tuple[NDArray[np.uint64], pa.Table] | None = None

    def read(self) -> tuple[NDArray[np.uint64], pa.Table]:
        """Keys, (rows,), and rows in the range, in their order in the run, each column in one chunk."""
        if self.kept is not None:
            return self.kept
        # Not memory-mapped: pages of a mapped file would count as this process's memory.
        with pa.OSFile(self.path) as file, pa.ipc.open_file(file) as reader:
            batches = [reader.get_batch(index) for index in range(self.start, self.stop)]
        # Joined at once: the objects around a small batch's columns take more memory than their values.
        rows = pa.Table.from_batches(batches).combine_chunks()
        keys = rows.column(0).to_numpy()
        first, last = _between(keys, self.low, self.high)
        return keys[first:last], rows.remove_column(0).slice(first, last - first)


@dataclass(frozen=True)
class Part:
    """The rows of some ranks of a group: where they lie, and how many rows precede them in the same key range."""

    slices: list[Slice]
    skip: int
    rows: int

    def read(self, settle: Settle, schema: pa.Schema) -> pa.Table:
        """The rows in the order of their keys, in one chunk, each piece brought to `schema` by `settle`."""
        pieces = [one.read() for one in self.slices]
        if not pieces:
            return schema.empty_table()
        keys = np.concatenate([keys for keys, _ in pieces])
        # Stable: rows of one key stay in the order in which they were put in.
        order = pa.array(np.argsort(keys, kind="stable")[self.skip : self.skip + self.rows])
        tables = [settle(table) for _, table in pieces]
        del pieces, keys
        columns = []
        for index, field_ in enumerate(schema):
            chunks = [chunk for table in tables for chunk in table.column(index).chunks]
            # Column by column, so that only one column exists in addition to the rows as read and as returned.
            columns.append(pa.concat_arrays(chunks).take(order) if chunks else pa.nulls(0, field_.type))
        del tables
        # The allocator keeps freed memory for later, but what is written next needs other sizes.
        pa.default_memory_pool().release_unused()
        return pa.Table.from_arrays(columns, schema=schema)


@dataclass
class Run:
    """One sorted run: per group the first key of each of its batches, or keys and rows if it is kept in memory."""

    path: str = ""
    first_keys: dict[str, tuple[int, NDArray[np.uint64]]] = field(default_factory=dict)
    kept: dict[str, tuple[NDArray[np.uint64], pa.Table]] = field(default_factory=dict)

    def locate(self, group: str, low: int, high: int) -> Slice | None:
        """The slice that holds keys low <= key < high; None if there is none."""
        if group in self.kept:
            keys, rows = self.kept[group]
            first, last = _between(keys, low, high)
            kept = (keys[first:last], rows.slice(first, last - first))
            return Slice(low, high, kept=kept) if first < last else None
        if group not in self.first_keys:
            return None
        offset, firsts = self.first_keys[group]
        # A batch may begin below `low` and end above it, so the batch before counts too.
        start = max(0, int(np.searchsorted(firsts, np.uint64(low), "left")) - 1)
        stop = len(firsts) if high >= 2**64 else int(np.searchsorted(firsts, np.uint64(high), "left"))
        return Slice(low, high, self.path, offset + start, offset + stop) if start < stop else None


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
        low, high = first << int(_SHIFT), (last + 1) << int(_SHIFT)
        slices = [found for run in self.runs if (found := run.locate(group, low, high)) is not None]
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
        run_bytes: rows that wait for a run to be full; making the run takes three times as much.
        keep_bytes: runs that may stay in memory; 0 writes each to a file.
        unify: brings tables of one run to one schema; by default they must have one.
    """

    def __init__(self, folder: Path, run_bytes: int, keep_bytes: int = 0, unify: Unify = list) -> None:
        self._folder, self._run_bytes, self._keep_bytes, self._unify = folder, run_bytes, keep_bytes, unify
        self._waiting: dict[str, list[tuple[NDArray[np.uint64], pa.Table]]] = {}
        self._bytes = self._kept_bytes = 0
        self._spilled = Spilled()

    def put(self, group: str, keys: NDArray[np.uint64], rows: pa.Table) -> None:
        """Add rows with their keys, (rows,) uint64."""
        if not len(keys):
            return
        self._waiting.setdefault(group, []).append((keys, rows))
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
        unified = iter(self._unify([rows for pieces in self._waiting.values() for _, rows in pieces]))
        groups = {
            group: ([keys for keys, _ in pieces], [next(unified) for _ in pieces])
            for group, pieces in self._waiting.items()
        }
        run = Run()
        self._waiting = {}
        for group in list(groups):
            pieces, tables = groups.pop(group)
            run.kept[group] = _sorted(np.concatenate(pieces), pa.concat_tables(tables))
            counts = np.bincount((run.kept[group][0] >> _SHIFT).astype(np.int64), minlength=RANGES)
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
        batches = 0
        with pa.OSFile(written.path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for group, (keys, rows) in run.kept.items():
                row_bytes = max(1, (rows.nbytes + keys.nbytes) // len(keys))
                step = min(BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
                whole = rows.add_column(0, schema.field(0), pa.array(keys)).to_batches()[0]
                for start in range(0, len(keys), step):
                    writer.write_batch(whole.slice(start, step))
                written.first_keys[group] = (batches, keys[::step].copy())
                batches += len(written.first_keys[group][1])
        return written


def _sorted(keys: NDArray[np.uint64], rows: pa.Table) -> tuple[NDArray[np.uint64], pa.Table]:
    order = np.argsort(keys, kind="stable")
    at = pa.array(order)
    columns = [pa.concat_arrays(column.chunks).take(at) for column in rows.columns]
    return keys[order], pa.Table.from_arrays(columns, schema=rows.schema)


def _between(keys: NDArray[np.uint64], low: int, high: int) -> tuple[int, int]:
    """The part of sorted keys with low <= key < high."""
    last = len(keys) if high >= 2**64 else int(np.searchsorted(keys, np.uint64(high), "left"))
    return int(np.searchsorted(keys, np.uint64(low), "left")), last
