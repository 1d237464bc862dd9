"""The order of samples as pure functions of the dataset, the seed and the epoch, and each rank's part of it at each
step.

It is independent of the machine, its memory and the number of ranks. An order gives the row at any position of an epoch
without computing the positions before it, so a run resumes anywhere at the same cost. Rows are numbered over the shards
of a split as they are stored. Torch-free; nothing here reads a file or knows the number of ranks, except `Plan`.

In a weighted mixture, kinds of rows take turns by weight, each in passes over all its rows. It continues from epoch to
epoch, so a position counts from the start of the training, and the cursor is sufficient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import LoaderSpec, TrainSpec

ROUNDS = 8
# After eight rounds, statistics find a pattern if a half has only a few values (seen with 12 rows); after 24 they do
# not.
SMALL = 4096
# Number of positions in which each kind comes exactly as often as its weight says, in a new random order each time.
ROUND = 1000


# The order of one epoch: the rows at these positions; IndexError for a position outside the epoch.
Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def epoch_order(loader: LoaderSpec, shard_rows: Sequence[int], dataset_id: str, seed: int, epoch: int) -> Order:
    """The order in which one epoch takes the rows of a split whose shards hold `shard_rows` rows each."""
    words = ("order", dataset_id, seed, epoch)
    if loader.shuffle == "global":
        return Permutation(sum(shard_rows), *words)
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
        rows = np.array(positions, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.num_rows):
            raise IndexError(f"a position is not between 0 and {self.num_rows}")
        # Not at the top: verify and evaluate read in stored order, and Numba takes half a second to import.
        from training.feistel import permute

        for keys in self.keys:
            permute(rows, np.uint64(self.num_rows), np.uint64(self.num_rows.bit_length() // 2), keys)
        return rows


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


class Mixture:
    """The order of one epoch, whose first position is `first` of the whole training."""

    def __init__(
        self, kinds: Mapping[str, NDArray[np.int64]], weights: Mapping[str, float], first: int, *words: str | int
    ) -> None:
        """Args: kinds: the rows of each kind, (its rows,) int64. Words: the seed."""
        # By name, so that the order in which a spec lists them has no effect.
        names = sorted(kinds)
        self._rows = [kinds[name] for name in names]
        self._names = names
        self._first, self._words = first, words
        self._turns = turns([weights[name] for name in names])
        self._kind_of = np.repeat(np.arange(len(names)), self._turns)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows at these positions of the epoch, both int64."""
        positions = np.asarray(positions, np.int64) + self._first
        rows = np.empty_like(positions)
        kind, turn = np.empty_like(positions), np.empty_like(positions)
        number = positions // ROUND
        for each in np.unique(number):
            here = number == each
            kinds = self._kind_of[Permutation(ROUND, *self._words, "round", int(each))(np.arange(ROUND))]
            at = positions[here] - each * ROUND
            kind[here] = kinds[at]
            turn[here] = each * self._turns[kind[here]] + _counted(kinds)[at]
        for one in np.unique(kind):
            held = self._rows[one]
            passes, inside = np.divmod(turn, len(held))
            for each in np.unique(passes[kind == one]):
                here = (kind == one) & (passes == each)
                order = Permutation(len(held), *self._words, "kind", self._names[one], int(each))
                rows[here] = held[order(inside[here])]
        return rows


def turns(weights: list[float]) -> NDArray[np.int64]:
    """How many of ROUND positions each weight gets, at least one; the largest remainders get what rounding leaves."""
    exact = np.array(weights) / sum(weights) * ROUND
    found = np.maximum(1, np.floor(exact)).astype(np.int64)
    for kind in np.argsort(found - exact, kind="stable")[: ROUND - found.sum()]:
        found[kind] += 1
    while found.sum() > ROUND:
        found[np.argmax(found)] -= 1
    return found


def _counted(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each place, the number of earlier places of its kind."""
    order = np.argsort(kinds, kind="stable")
    counts = np.bincount(kinds)
    before = np.empty_like(order)
    before[order] = np.arange(len(kinds)) - np.repeat(np.cumsum(counts) - counts, counts)
    return before


@dataclass(frozen=True)
class Plan:
    """An epoch divided into global batches, and these into the micro-batches of each rank.

    Attributes:
        num_rows: rows of the train split.
        global_batch: rows per optimizer step, over all ranks.
        micro_batch: rows that one device takes at once.
        accumulate: micro-batches per optimizer step and rank.
        steps_per_epoch: optimizer steps per epoch.
        dropped_rows: rows of the last, incomplete global batch of each epoch, which is left out.
    """

    num_rows: int
    global_batch: int
    world_size: int
    micro_batch: int
    accumulate: int
    steps_per_epoch: int
    dropped_rows: int

    def positions(self, first: int, count: int, rank: int) -> NDArray[np.int64]:
        """Positions in an epoch's order of a rank's micro-batches `first`, `first + 1`, …, (count, micro_batch) int64.

        All ranks' micro-batches of one step together are the same rows, whatever the world size.
        """
        step, micro_step = np.divmod(np.arange(first, first + count), self.accumulate)
        starts = step * self.global_batch + (rank * self.accumulate + micro_step) * self.micro_batch
        return starts[:, None] + np.arange(self.micro_batch)


def make_plan(num_rows: int, train: TrainSpec, world_size: int) -> Plan:
    """The plan for a train split of `num_rows` rows on `world_size` ranks.

    Raises:
        UsageError: the rows do not fill one global batch, or the world size does not divide it.
    """
    size = train.global_batch_size
    if size % world_size:
        raise UsageError(
            f"train.global_batch_size {size} is not divisible by {world_size} ranks.",
            remedy="Change it, or change train.nodes and train.devices.",
        )
    refuse_too_few(num_rows, size)
    per_rank = size // world_size
    most = min(train.micro_batch_size or per_rank, per_rank)
    # micro_batch_size is the most that one device takes: on a smaller gang it may not divide the rows of a rank.
    micro = next(rows for rows in range(most, 0, -1) if per_rank % rows == 0)
    steps = num_rows // size
    return Plan(num_rows, size, world_size, micro, per_rank // micro, steps, num_rows - steps * size)


def refuse_too_few(num_rows: int, global_batch_size: int) -> None:
    """UsageError if the rows do not fill one global batch."""
    if num_rows < global_batch_size:
        raise UsageError(
            f"The train split has {num_rows} rows, fewer than train.global_batch_size {global_batch_size}, so no step "
            "can be taken.",
            remedy="Lower train.global_batch_size, or give more data.",
        )
