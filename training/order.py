"""Sample order as a pure function: never of the machine, its memory or the number of ranks.

An order says for any position of an epoch which row stands there, without computing the positions before it, so a
run goes on anywhere at the same cost. Rows are numbered over the shards of a split as they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

import numpy as np
from blake3 import blake3
from numba import njit

from data_contracts.canonical import canonical
from data_contracts.spec import LoaderSpec

ROUNDS = 8
# Eight rounds leave a trace that statistics find where a half has only a few values (seen with 12 rows); 24 do not.
SMALL = 4096
Function = TypeVar("Function", bound=Callable)


class Order(Protocol):
    """The order of one epoch."""

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The rows at these positions, both int64; IndexError for a position outside the epoch."""


def epoch_order(loader: LoaderSpec, shard_rows: Sequence[int], dataset_id: str, seed: int, epoch: int) -> Order:
    """The order in which one epoch takes the rows of a split whose shards hold `shard_rows` rows each."""
    words = ("order", dataset_id, seed, epoch)
    if loader.shuffle == "global":
        return Permutation(sum(shard_rows), *words)
    return BlockOrder(shard_rows, loader.block_rows or max(shard_rows), loader.window, *words)


class Permutation:
    """A true permutation of `range(num_rows)` that is computed anywhere by itself; it shuffles globally.

    A Feistel network over pairs (row >> k, row & (2^k - 1)), whose domain exceeds `num_rows` by less than 2^k, about
    its root; what falls outside goes through again. Keys are BLAKE3 of the words. See Black and Rogaway, "Ciphers
    with arbitrary finite domains" (2002).
    """

    def __init__(self, num_rows: int, *words: str | int) -> None:
        self.num_rows = num_rows
        passes = 3 if num_rows < SMALL else 1
        drawn = blake3(canonical(list(words))).digest(length=8 * ROUNDS * passes)
        self._keys = np.frombuffer(drawn, "<u8").astype(np.uint64).reshape(passes, ROUNDS)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The rows at these positions; IndexError for one that is not below `num_rows`."""
        rows = np.array(positions, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.num_rows):
            raise IndexError(f"a position is not between 0 and {self.num_rows}")
        for keys in self._keys:
            _permute(rows, np.uint64(self.num_rows), np.uint64(self.num_rows.bit_length() // 2), keys)
        return rows


class BlockOrder:
    """Blocks of rows stored side by side come in a permuted order, and rows are shuffled within windows of blocks.

    What one window needs can be read block by block. Blocks begin anew with each shard, so the last of a shard may be
    shorter; the rows of a window are a true permutation of the rows of its blocks.
    """

    def __init__(self, shard_rows: Sequence[int], block_rows: int, window_blocks: int, *words: str | int) -> None:
        starts, lengths = blocks_of(shard_rows, block_rows)
        order = Permutation(len(starts), *words, "blocks")(np.arange(len(starts)))
        ends = np.cumsum(lengths[order])
        # Row minus position, block by block, while the rows of a window still stand in their blocks' order.
        self._first_rows = starts[order]
        self._shift = self._first_rows - (ends - lengths[order])
        self._ends = ends
        self._windows = np.concatenate([[0], ends[window_blocks - 1 :: window_blocks], ends[-1:]])
        self._window_blocks = window_blocks
        self._words = words

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The rows at these positions; IndexError for one outside the epoch."""
        positions = np.asarray(positions, np.int64)
        rows = np.empty_like(positions)
        if not len(positions):
            return rows
        first, last = positions.min(), positions.max()
        if first < 0 or last >= self._windows[-1]:
            raise IndexError(f"a position is not between 0 and {self._windows[-1]}")
        for window in range(*(np.searchsorted(self._windows, [first, last], side="right") - [1, 0])):
            start, stop = int(self._windows[window]), int(self._windows[window + 1])
            here = (positions >= start) & (positions < stop)
            shuffle = Permutation(stop - start, *self._words, "window", window)
            inside = shuffle(positions[here] - start) + start
            block = window * self._window_blocks
            ends = self._ends[block : block + self._window_blocks]
            rows[here] = inside + self._shift[block + np.searchsorted(ends, inside, side="right")]
        return rows

    def next_blocks(self, position: int) -> np.ndarray:
        """A row of each block of the window after the one that holds this position; of the first one for -1."""
        block = int(np.searchsorted(self._windows, position, side="right")) * self._window_blocks
        return self._first_rows[block : block + self._window_blocks]


def blocks_of(shard_rows: Sequence[int], block_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """First row and number of rows of each block, over all shards in stored order, int64."""
    rows = np.asarray(shard_rows, np.int64)
    counts = -(-rows // block_rows)
    shard = np.repeat(np.arange(len(rows)), counts)
    inside = (np.arange(len(shard)) - (np.cumsum(counts) - counts)[shard]) * block_rows
    return (np.cumsum(rows) - rows)[shard] + inside, np.minimum(block_rows, rows[shard] - inside)


def _compiled(function: Function) -> Function:
    try:
        made = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep the compiled code, as on a read-only disk: half a second per process
        made = njit(nogil=True)(function)
    return cast(Function, made)


@_compiled
def _hash(value: np.uint64) -> np.uint64:
    """32 well-mixed bits, in the low half."""
    value *= np.uint64(0x9E3779B97F4A7C15)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value >> np.uint64(32)


@_compiled
def _twice(
    left: np.uint64, right: np.uint64, high: np.uint64, low: np.uint64, key: np.uint64, next_key: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Two rounds: `left` below `high` moves by a hash of `right`, then `right` (its mask is `low`) by one of `left`."""
    # A hash times `high`, halved, is evenly spread over range(high). Unsigned, so one of the two is below `high`.
    left += (_hash(right ^ key) * high) >> np.uint64(32)
    left = min(left, left - high)
    return left, (right + _hash(left ^ next_key)) & low


@_compiled
def _permute(rows: np.ndarray, num_rows: np.uint64, bits: np.uint64, keys: np.ndarray) -> None:
    low = (np.uint64(1) << bits) - np.uint64(1)
    high = (num_rows + low) >> bits
    # A straight line, which compiles to vector instructions; the few rows that fall outside are seen to afterwards.
    for at in range(len(rows)):
        row = np.uint64(rows[at])
        left, right = row >> bits, row & low
        left, right = _twice(left, right, high, low, keys[0], keys[1])
        left, right = _twice(left, right, high, low, keys[2], keys[3])
        left, right = _twice(left, right, high, low, keys[4], keys[5])
        left, right = _twice(left, right, high, low, keys[6], keys[7])
        rows[at] = np.int64((left << bits) | right)
    for at in range(len(rows)):
        row = np.uint64(rows[at])
        while row >= num_rows:
            left, right = row >> bits, row & low
            for number in range(0, len(keys), 2):
                left, right = _twice(left, right, high, low, keys[number], keys[number + 1])
            row = (left << bits) | right
        rows[at] = np.int64(row)
