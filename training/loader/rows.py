"""Holds the rows of a split, and gathers any of them.

`AllRows` has all of them, in memory or in mapped files; `StreamedRows` reads blocks of the shards on demand and keeps
the latest. Both gather the same rows.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from training.formats.shards import Shards
from training.loader.buffer_pool import BufferPool
from training.loader.columns import Column, Fixed, Varying, names_of
from training.order.permutation import blocks_of

Gathered = list[NDArray[Any] | torch.Tensor | pa.Array]
# Blocks that are read and decoded in parallel; PyArrow and NumPy release the interpreter lock meanwhile.
READERS = 2
NO_ROWS = np.empty(0, np.int64)


class Rows(Protocol):
    """The rows of a split.

    Attributes:
        spent: seconds so far, by what was done.
        chunk_bytes: bytes to gather at a time, so that the cost of handing over to other threads does not count.
    """

    chunk_bytes: int
    num_rows: int
    spent: dict[str, float]

    def gather(self, rows: NDArray[np.int64], pin: bool = False, soon: NDArray[np.int64] = NO_ROWS) -> Gathered:
        """These rows, column by column, in memory of their own; on request pinned, as tensors.

        Args:
            rows: (n,), in any order.
            soon: rows, (m,), whose neighbours are asked for next, so that they may be read meanwhile.
        """


class AllRows:
    """All rows in arrays, (num_rows, *shape) each, and in one Arrow array per shard where rows vary in length."""

    # With 4 MiB an epoch took a sixth to a quarter longer, with 1 MiB twice as long.
    chunk_bytes = 2**24

    def __init__(self, columns: list[Column], shard_rows: list[int], values: list[Any], where: str) -> None:
        self.num_rows = sum(shard_rows)
        self.spent: dict[str, float] = defaultdict(float)
        self._columns, self._values, self._where = columns, values, where
        self._starts = np.cumsum([0, *shard_rows])
        self._memory = BufferPool()

    def gather(self, rows: NDArray[np.int64], pin: bool = False, soon: NDArray[np.int64] = NO_ROWS) -> Gathered:
        """These rows; `spent` counts the time under `memory` or `cache`."""
        since = time.perf_counter()
        gathered: Gathered = []
        for column, values in zip(self._columns, self._values, strict=True):
            if isinstance(column, Fixed):
                take = self._memory.take_pinned if pin else self._memory.take
                gathered.append(take(values, rows))
            else:
                gathered.append(_take_varying(values, self._starts, rows))
        self.spent[self._where] += time.perf_counter() - since
        return gathered


def hold(columns: list[Column], shards: Shards) -> AllRows:
    """Decode all rows into memory, shard by shard."""
    values: list[Any] = [
        np.empty((shards.num_rows, *column.shape), column.dtype) if isinstance(column, Fixed) else []
        for column in columns
    ]
    at = 0
    for number in range(len(shards)):
        texts: list[list[pa.Array]] = [[] for _ in columns]
        for table in shards.tables(number, names_of(columns)):
            for place, column in enumerate(columns):
                if isinstance(column, Fixed):
                    column.decode(table, values[place][at : at + table.num_rows])
                else:
                    texts[place].append(column.decode(table))
            at += table.num_rows
        for place, column in enumerate(columns):
            if isinstance(column, Varying):
                values[place].append(_joined(texts[place], column, shards))
    return AllRows(columns, shards.rows, values, "memory")


class StreamedRows:
    """Blocks of the shards, decoded when one of their rows is asked for; the latest `most_blocks` are kept.

    With the block order a window's blocks are asked for together and never again, so each is decoded once an epoch.
    """

    # A larger chunk would reach over many windows, and no window would be read ahead.
    chunk_bytes = 2**22

    def __init__(self, columns: list[Column], shards: Shards, block_rows: int, memory_bytes: int, least: int) -> None:
        """Raises UsageError if `least` blocks do not fit `memory_bytes`."""
        self._starts, self._lengths = blocks_of(shards.rows, block_rows)
        longest = int(self._lengths.max(initial=1))
        block_bytes = max(1, round(row_bytes(columns, shards) * longest))
        most = min(len(self._starts), memory_bytes // block_bytes)
        if most < min(least, len(self._starts)):
            raise UsageError(
                f"train.loader.memory_bytes {memory_bytes:,} does not hold {least} blocks of {longest:,} rows "
                f"(about {least * block_bytes:,} bytes), the least that reading from the shards needs.",
                remedy="Raise it, or lower train.loader.window_blocks or block_rows, which changes the order.",
            )
        self.num_rows = shards.num_rows
        self.spent = shards.spent
        self._columns, self._shards, self._size = columns, shards, longest
        self._shard_of = np.repeat(np.arange(len(shards)), [-(-rows // block_rows) for rows in shards.rows])
        self._shard_starts = np.cumsum([0, *shards.rows])
        # One place per kept block: fixed columns side by side in one array, the others as they are.
        self._pool: list[Any] = [
            np.empty((most * longest, *column.shape), column.dtype)
            if isinstance(column, Fixed)
            else [pa.array([])] * most
            for column in columns
        ]
        self._places: OrderedDict[int, int] = OrderedDict()
        self._place_of = np.zeros(len(self._starts), np.int64)
        self._free = list(range(most))
        self._pool_bounds = np.arange(most + 1) * longest
        self._reading: dict[int, Future[None]] = {}
        self._memory = BufferPool()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="blocks")

    def gather(self, rows: NDArray[np.int64], pin: bool = False, soon: NDArray[np.int64] = NO_ROWS) -> Gathered:
        """These rows. Their blocks are read first and replace the least recently used.

        The blocks that are needed soon are read while these rows are gathered, if there is room for both.
        """
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        gathered: list[Gathered] = []
        asked = np.zeros(len(self._starts), bool)
        asked[blocks] = True
        needed = np.flatnonzero(asked)
        most = len(self._pool_bounds) - 1
        # More blocks than there is room for: gathered in parts, and put back in order at the end.
        for at in range(0, len(needed), most):
            part = needed[at : at + most]
            inside = np.flatnonzero(np.isin(blocks, part)) if len(needed) > most else np.arange(len(rows))
            self._load(part)
            if at + most >= len(needed):
                for block in (np.searchsorted(self._starts, soon, side="right") - 1).tolist():
                    self._begin(block, part)
            gathered.append([inside, *self._gather(rows[inside], blocks[inside], pin and len(needed) <= most)])
        if len(gathered) == 1:
            return gathered[0][1:]
        back = np.argsort(np.concatenate([part[0] for part in gathered]))
        joined = [list(parts) for parts in zip(*(part[1:] for part in gathered), strict=True)]
        return [
            np.concatenate(parts)[back] if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts).take(back)
            for parts in joined
        ]

    def _load(self, needed: NDArray[np.int64]) -> None:
        """Wait until these blocks are loaded; blocks that no thread has begun to read are read now."""
        for block in needed.tolist():
            if block in self._places:
                self._places.move_to_end(block)
        for block in needed.tolist():
            if not self._begin(block, needed):
                unasked = next(one for one in self._places if one not in needed)
                wait([self._reading.pop(unasked)])
                self._begin(block, needed)
        failed: list[BaseException] = []
        for block in needed.tolist():
            reading = self._reading.pop(block, None)
            error = reading.exception() if reading is not None else None
            if error is not None:
                failed.append(error)
                self._free.append(self._places.pop(block))
        if failed:
            raise failed[0]

    def _begin(self, block: int, needed: NDArray[np.int64]) -> bool:
        """Begin to read a block that is not loaded; False if all places are `needed` or being read into."""
        if block in self._places:
            return True
        if not self._free:
            oldest = next((one for one in self._places if one not in needed and one not in self._reading), None)
            if oldest is None:
                return False
            self._free.append(self._places.pop(oldest))
        place = self._free.pop()
        self._places[block] = self._place_of[block] = place
        self._reading[block] = self._readers.submit(self._read, block, place)
        return True

    def _gather(self, rows: NDArray[np.int64], blocks: NDArray[np.int64], pin: bool) -> Gathered:
        since = time.perf_counter()
        local = self._place_of[blocks] * self._size + (rows - self._starts[blocks])
        take = self._memory.take_pinned if pin else self._memory.take
        gathered: Gathered = [
            take(pool, local) if isinstance(column, Fixed) else _take_varying(pool, self._pool_bounds, local)
            for column, pool in zip(self._columns, self._pool, strict=True)
        ]
        self.spent["memory"] += time.perf_counter() - since
        return gathered

    def _read(self, block: int, place: int) -> None:
        shard = int(self._shard_of[block])
        start = int(self._starts[block] - self._shard_starts[shard])
        texts: list[list[pa.Array]] = [[] for _ in self._columns]
        at = place * self._size
        for table in self._shards.tables(shard, names_of(self._columns), start, start + int(self._lengths[block])):
            for index, column in enumerate(self._columns):
                if isinstance(column, Fixed):
                    column.decode(table, self._pool[index][at : at + table.num_rows])
                else:
                    texts[index].append(column.decode(table))
            at += table.num_rows
        for index, column in enumerate(self._columns):
            if isinstance(column, Varying):
                self._pool[index][place] = _joined(texts[index], column, self._shards)


def row_bytes(columns: list[Column], shards: Shards) -> float:
    """Bytes of a decoded row: exact for fixed columns; for the others an upper estimate from the shards."""
    fixed = sum(column.row_bytes for column in columns if isinstance(column, Fixed))
    varies = any(isinstance(column, Varying) for column in columns)
    return fixed + (shards.num_bytes / max(1, shards.num_rows) if varies else 0.0)


def _take_varying(parts: list[pa.Array], starts: NDArray[np.int64], rows: NDArray[np.int64]) -> pa.Array:
    """Rows of consecutive arrays; `starts` has the first row of each.

    Arrow's own `take` on a chunked array joins all chunks first, each time.
    """
    part = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(part, kind="stable")
    numbers, firsts = np.unique(part[order], return_index=True)
    pieces = [
        parts[number].take(pa.array(rows[places] - starts[number]))
        for number, places in zip(numbers, np.split(order, firsts[1:]), strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(pieces).take(pa.array(back)) if pieces else parts[0][:0]


def _joined(parts: list[pa.Array], column: Varying, shards: Shards) -> pa.Array:
    if not parts:
        return pa.array([], shards.schema.field(column.columns[0]).type)
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowInvalid as error:  # its offsets have 32 bits
        raise UsageError(
            f"Column {column.columns[0]!r} has more than 2 GiB in one shard, which cannot be held.",
            remedy="Lower shards.target_size_bytes.",
        ) from error
