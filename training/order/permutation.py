"""Sample order as a pure function, independent of the machine, its memory and the number of ranks.

An order gives the row at any position of an epoch without computing the positions before it, so a run resumes anywhere
at the same cost. Rows are numbered over the shards of a split as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.canonical import canonical
from data_contracts.pipeline_spec import LoaderSpec
from training.order.network import table

ROUNDS = 8
# After eight rounds, statistics find a pattern if a half has only a few values (seen with 12 rows); after 24 they do
# not.
SMALL = 4096
# Of fewer rows, NumPy makes the order of an epoch in 5 ms; to import Numba and load compiled code takes 0.6 s once.
TABLED = 65_536


class Order(Protocol):
    """The order of one epoch."""

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these positions, both int64; IndexError for a position outside the epoch."""


def epoch_order(loader: LoaderSpec, shard_rows: Sequence[int], dataset_id: str, seed: int, epoch: int) -> Order:
    """The order in which one epoch takes the rows of a split whose shards hold `shard_rows` rows each."""
    words = ("order", dataset_id, seed, epoch)
    if loader.shuffle == "global":
        order = Permutation(sum(shard_rows), *words)
        return Tabled(order) if order.num_rows < TABLED else order
    return BlockOrder(shard_rows, loader.block_rows or max(shard_rows), loader.window, *words)


class Permutation:
    """A true permutation of `range(num_rows)`, computed independently at any position; it shuffles globally.

    A Feistel network over pairs (row >> k, row & (2^k - 1)), whose domain exceeds `num_rows` by less than 2^k, about
    its root; a result outside is permuted again. Keys are BLAKE3 of the words. See Black and Rogaway, "Ciphers with
    arbitrary finite domains" (2002).
    """

    def __init__(self, num_rows: int, *words: str | int) -> None:
        self.num_rows = num_rows
        passes = 3 if num_rows < SMALL else 1
        drawn = blake3(canonical(list(words))).digest(length=8 * ROUNDS * passes)
        # Of the network, (passes, rounds).
        self.keys = np.frombuffer(drawn, "<u8").astype(np.uint64).reshape(passes, ROUNDS)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these positions; IndexError for a position that is not below `num_rows`."""
        rows = _inside(positions, self.num_rows).copy()
        # Not at the top: few rows need no compiled code, and verify and evaluate read in stored order.
        from training.order.feistel import permute

        for keys in self.keys:
            permute(rows, np.uint64(self.num_rows), np.uint64(self.num_rows.bit_length() // 2), keys)
        return rows


def _inside(positions: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """The positions as int64; IndexError for one that is not below `num_rows`."""
    positions = np.asarray(positions, np.int64)
    if len(positions) and not (positions.min() >= 0 and positions.max() < num_rows):
        raise IndexError(f"a position is not between 0 and {num_rows}")
    return positions


class Tabled:
    """The same order as a `Permutation` of few rows, from a table of all of them."""

    def __init__(self, order: Permutation) -> None:
        self._rows = table(order.num_rows, order.keys)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these positions; IndexError for a position outside the epoch."""
        return self._rows[_inside(positions, len(self._rows))]


class BlockOrder:
    """Blocks of rows stored side by side come in a permuted order, and rows are shuffled within windows of blocks.

    The rows of one window can be read block by block. Blocks start again with each shard, so the last block of a shard
    may be shorter; the rows of a window are a true permutation of the rows of its blocks.
    """

    def __init__(self, shard_rows: Sequence[int], block_rows: int, window_blocks: int, *words: str | int) -> None:
        starts, lengths = blocks_of(shard_rows, block_rows)
        order = Permutation(len(starts), *words, "blocks")(np.arange(len(starts)))
        ends = np.cumsum(lengths[order])
        # Row minus position, block by block, while the rows of a window are still in their blocks' order.
        self._first_rows = starts[order]
        self._shift = self._first_rows - (ends - lengths[order])
        self._ends = ends
        self._windows = np.concatenate([[0], ends[window_blocks - 1 :: window_blocks], ends[-1:]])
        self._window_blocks = window_blocks
        self._words = words

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these positions; IndexError for a position outside the epoch."""
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

    def next_blocks(self, position: int) -> NDArray[np.int64]:
        """A row of each block of the window after the one with this position; for -1, of the first window."""
        block = int(np.searchsorted(self._windows, position, side="right")) * self._window_blocks
        return self._first_rows[block : block + self._window_blocks]


def blocks_of(shard_rows: Sequence[int], block_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row and number of rows of each block, over all shards in stored order, int64."""
    rows = np.asarray(shard_rows, np.int64)
    counts = -(-rows // block_rows)
    shard = np.repeat(np.arange(len(rows)), counts)
    inside = (np.arange(len(shard)) - (np.cumsum(counts) - counts)[shard]) * block_rows
    return (np.cumsum(rows) - rows)[shard] + inside, np.minimum(block_rows, rows[shard] - inside)
