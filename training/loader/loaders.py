"""The loaders that Lightning iterates: batches of a split in the order of training, or in stored order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.pipeline_spec import LoaderSpec
from training.loader.prefetch import Chunk, Prefetcher
from training.loader.rows import NO_ROWS
from training.loader.split_reader import MemoryBudget, Split
from training.order.mixture import Mixture
from training.order.permutation import BlockOrder, Order, epoch_order
from training.order.rank_plan import Plan

# At most this many batches are gathered at a time, or as many as fit `Rows.chunk_bytes`; the first chunk is one batch.
CHUNK_BATCHES = 64
AHEAD_BYTES = 2**26


@dataclass(frozen=True)
class Sampling:
    """What decides the order of samples, besides the rows and the plan: it is a pure function of these."""

    dataset_id: str
    seed: int
    loader: LoaderSpec = field(default_factory=LoaderSpec)


class TrainLoader:
    """One rank's micro-batches, epoch after epoch, from a cursor that any number of ranks can resume from.

    A thread gathers them ahead; the cursor counts only batches that were handed out.
    """

    def __init__(
        self,
        split: Split,
        plan: Plan,
        sampling: Sampling,
        rank: int,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        pin: bool = False,
        skip: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Split and plan as in `Split` and `Plan`.

        Args:
            skip: samples (from, to), in whole global batches, that are counted and never handed out.
        """
        self.split = split
        self.plan = plan
        self._source = _Source(split, plan, sampling, rank, ahead_bytes, pin)
        self._ahead: Prefetcher | None = None
        self._ahead_bytes = ahead_bytes
        self._ready: deque[Any] = deque()
        self._served = 0
        self._skip = skip
        # Called here and not at the first batch, because it makes a table or loads compiled code.
        self._source.order(0)(np.zeros(1, np.int64))

    @property
    def samples(self) -> int:
        """Samples consumed over all ranks and epochs, in whole global batches."""
        return self._served // self.plan.accumulate * self.plan.global_batch

    @property
    def passes_over(self) -> bool:
        """Whether the next micro-batch is skipped: the loader yields None in its place."""
        return any(first <= self.samples < end for first, end in self._skip)

    def rows(self, first: int, end: int) -> NDArray[np.int64]:
        """The rows, (samples,), at these samples of the training, over all ranks, in the order of training."""
        epoch_samples = self.plan.steps_per_epoch * self.plan.global_batch
        found = [np.empty(0, np.int64)]
        while first < end:
            epoch, at = divmod(first, epoch_samples)
            upto = min(end - first + at, epoch_samples)
            found.append(self._source.order(epoch)(np.arange(at, upto)))
            first += upto - at
        return np.concatenate(found)

    @property
    def spent(self) -> dict[str, float]:
        """Seconds spent on preparing batches so far, by cause."""
        return self.split.spent

    def __len__(self) -> int:
        return self.plan.steps_per_epoch * self.plan.accumulate

    def __iter__(self) -> Iterator[Any]:
        # Iteration continues at the cursor: an epoch that Lightning cuts short (`limit_train_batches`) skips nothing.
        for _ in range(len(self)):
            try:
                if not self._ready:
                    self._fetch()
                batch = self._ready.popleft()
                batch = None if self.passes_over else self.split.transformed(batch)
            except BaseException:
                self.close()
                raise
            self._served += 1
            yield batch

    def first_epoch(self) -> Iterator[Any]:
        """The micro-batches of the first epoch, also those that are skipped; neither uses nor moves the cursor."""
        chunks = self._source.chunks(0)
        for batch in islice(chain.from_iterable(batches for batches, _ in chunks), len(self)):
            yield self.split.transformed(batch)

    def state_dict(self) -> dict[str, int]:
        """The cursor: `{"samples": …}`."""
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume after so many samples; UsageError if they are not a whole number of global batches."""
        steps, rest = divmod(state["samples"], self.plan.global_batch)
        if rest:
            raise UsageError(
                f"The checkpoint was made after {state['samples']} samples, in the middle of a global batch of "
                f"{self.plan.global_batch}.",
                remedy="Resume with the train.global_batch_size that it was made with.",
            )
        self.close()
        self._served = steps * self.plan.accumulate

    def close(self) -> None:
        """End the thread. A later batch is prepared again."""
        self._ready.clear()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _fetch(self) -> None:
        if self._ahead is None:
            self._ahead = Prefetcher(self._source.chunks(self._served), self._ahead_bytes)
        self._ready.extend(self._ahead.next())


class _Source:
    """Chunks of one rank's micro-batches from any position on. Separate from the loader, because the thread keeps it
    alive.
    """

    def __init__(self, split: Split, plan: Plan, sampling: Sampling, rank: int, ahead_bytes: int, pin: bool) -> None:
        self._split, self._plan, self._rank, self._pin = split, plan, rank, pin
        self._loader, self._words = sampling.loader, (sampling.dataset_id, sampling.seed)
        batch_bytes = max(1.0, split.row_bytes * plan.micro_batch)
        self._count = max(1, min(CHUNK_BATCHES, int(min(split.chunk_bytes, ahead_bytes / 4) / batch_bytes)))

    def order(self, epoch: int) -> Order:
        """The order of an epoch."""
        plan, mixture, kinds = self._plan, self._loader.mixture, self._split.kinds
        if mixture is not None and kinds is not None:
            first = epoch * plan.steps_per_epoch * plan.global_batch
            return Mixture(kinds, mixture.weights, first, "mixture", *self._words)
        return epoch_order(self._loader, self._split.shard_rows, *self._words, epoch)

    def _soon(self, order: Order, epoch: int, position: int) -> NDArray[np.int64]:
        """Rows of the blocks that come after those at this position."""
        if not isinstance(order, BlockOrder):
            return NO_ROWS
        rows = order.next_blocks(position)
        return rows if len(rows) else self._soon(self.order(epoch + 1), epoch + 1, -1)

    def chunks(self, served: int) -> Iterator[Chunk]:
        """The chunks after `served` micro-batches, without end; a chunk lies within one epoch."""
        per_epoch = self._plan.steps_per_epoch * self._plan.accumulate
        most = 1  # at first: the first step waits for one batch, not for a chunk of them
        while True:
            epoch, first = divmod(served, per_epoch)
            order = self.order(epoch)
            while first < per_epoch:
                count = min(most, per_epoch - first)
                most = min(2 * most, self._count)
                positions = self._plan.positions(first, count, self._rank).reshape(-1)
                soon = self._soon(order, epoch, int(positions[-1]))
                yield self._split.batches(order(positions), self._plan.micro_batch, self._pin, soon)
                first += count
                served += count


def ahead_bytes(batch_bytes: float, room: MemoryBudget) -> int:
    """Memory for batches that are prepared ahead, taken from the rank's room: at least three batches if possible."""
    wanted = round(min(max(AHEAD_BYTES, 3 * batch_bytes), room.memory_bytes / 4))
    room.take_memory(wanted)
    return wanted


class OrderedLoader:
    """Every row of a split once, in stored order, in batches of at most `batch_size` (one row more where ranks require
    it).

    With several ranks each takes its share, and all take the same number of batches, so that collectives in a step
    match. Nothing is padded; batches differ by a row instead. A split with fewer rows than ranks goes to every rank.
    """

    def __init__(self, split: Split, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self.split = split
        self._position: int | None = None  # of the batch that was handed out last
        rows = split.num_rows
        share = world_size if rows >= world_size else 1
        per_rank = -(-rows // (batch_size * share))
        # Fewer batches with one row more, where the last round would leave a rank with an empty batch.
        pieces = max(1, min(per_rank, rows // share)) * share if rows else 0
        mine = range(rank % share, pieces, share)
        self.bounds = (
            [(at * batch_size, min((at + 1) * batch_size, rows)) for at in mine]
            if share == 1
            else [(at * rows // pieces, (at + 1) * rows // pieces) for at in mine]
        )

    def __len__(self) -> int:
        return len(self.bounds)

    def num_rows(self, position: int) -> int:
        """The rows of the batch at this position."""
        start, stop = self.bounds[position]
        return stop - start

    def __iter__(self) -> Iterator[Any]:
        for position, (start, stop) in enumerate(self.bounds):
            self._position = position
            yield self.split.take(slice(start, stop))

    @contextmanager
    def rows_named(self) -> Iterator[None]:
        """Say in an error from inside on which rows the work on the loader's batches ended."""
        self._position = None
        try:
            yield
        except (UserCodeError, UsageError) as error:
            if self._position is not None:
                error.message = f"{error.message.rstrip('.')}, on {self.split.in_words(*self.bounds[self._position])}."
            raise
