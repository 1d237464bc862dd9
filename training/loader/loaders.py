"""The loaders that Lightning iterates: batches of a split in the order of training, or in stored order.

A thread prepares batches while the step computes, within a memory bound. `LoaderView` is what a module sees as
`trainer.train_dataloader`: our loader as a DataLoader would be, apart from the Trainer's own iteration.

How many rows a batch has, our loaders know, a DataLoader's sampler says, or else the batch's columns must agree on.
Lightning weights means over an epoch by the length of the first tensor that it finds anywhere in a batch; for a column
of lists, that is the length of one row's list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain, cycle, islice
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.pipeline_spec import LoaderSpec
from training.lightning_adapter import ViewedLoader, weigh_logged_by
from training.loader.rows import NO_ROWS
from training.loader.split import MemoryBudget, Split
from training.order import BlockOrder, Mixture, Order, Plan, epoch_order

# At most this many batches are gathered at a time, or as many as fit `Rows.chunk_bytes`; the first chunk is one batch.
CHUNK_BATCHES = 64
AHEAD_BYTES = 2**26
MOST_CHUNKS = 16
# Batches that are held in memory, and taken again and again.
_HELD = 32


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
        self._ready: deque[Any] = deque()
        self._served = 0
        self._skip = skip
        # Called here and not at the first batch, because it loads compiled code.
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
        for batch in islice(chain.from_iterable(chunks), len(self)):
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
            self._ahead = Prefetcher(self._source.chunks(self._served), self._source.depth)
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
        # Of chunks that are prepared ahead; one more is being handed out.
        self.depth = max(1, min(MOST_CHUNKS, int(ahead_bytes / (self._count * batch_bytes)) - 1))

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

    def chunks(self, served: int) -> Iterator[list[Any]]:
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


class ReadyBatches:
    """The first batches of a loader or a list, repeated to `count`; a list itself would be several loaders."""

    def __init__(self, loader: Iterable[Any], count: int) -> None:
        self._held = list(islice(loader, min(_HELD, count)))
        self._count = count if self._held else 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return islice(cycle(self._held), self._count)


class LoaderView:
    """A rank's micro-batches of an epoch. Each iteration is independent of all others and moves nothing.

    It is always the first epoch, so that what a hook computes from it is the same in a resumed training.

    Attributes:
        loader: the loader that the Trainer iterates.
    """

    def __init__(self, loader: TrainLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self.loader.first_epoch()


def with_view(loaders: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Trainer.fit` in which the user's code sees a view of our loader instead of the loader."""
    loader = loaders.get("train_dataloaders")
    viewed = {"train_dataloaders": ViewedLoader(loader, LoaderView(loader))} if isinstance(loader, TrainLoader) else {}
    return {**loaders, **viewed}


def loader_of(trainer: L.Trainer) -> TrainLoader | None:
    """Our loader that a Trainer iterates; None if the batches are the user's own."""
    view = trainer.train_dataloader
    return view.loader if isinstance(view, LoaderView) else None


class CountRows(L.Callback):
    """Gives Lightning the number of rows of each batch of our loaders."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Runs after Lightning has taken the batch, before the module's step logs anything."""
        if (loader := loader_of(trainer)) is not None:
            weigh_logged_by(trainer, loader.plan.micro_batch)

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Runs at the same point of a validation batch."""
        if isinstance(trainer.val_dataloaders, OrderedLoader):
            weigh_logged_by(trainer, trainer.val_dataloaders.num_rows(batch_idx))


def rows_of(batch: Any, loaders: Any, position: int, loader: int = 0) -> int | None:
    """The rows of a batch; None if the number is unknown.

    Args:
        loaders: what Lightning iterates: a loader, or several.
        position: the batch's place among those of its loader, which is number `loader`.
    """
    several = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
    source = several[loader] if isinstance(several, list | tuple) and loader < len(several) else several
    if isinstance(source, OrderedLoader):
        return source.num_rows(position)
    if isinstance(source, DataLoader) and type(source.batch_sampler) is BatchSampler:
        sampler = source.batch_sampler
        try:
            rows = len(sampler.sampler) - position * sampler.batch_size  # type: ignore[arg-type]
        except TypeError:  # a sampler without a length
            return _agreed(batch)
        return max(0, min(sampler.batch_size, rows))
    return _agreed(batch)


def _agreed(batch: Any) -> int | None:
    """The only number of rows that all columns can have; None if there are several such numbers, or none."""
    counts = _counts(batch, outermost=True)
    return next(iter(counts)) if counts is not None and len(counts) == 1 else None


def _counts(value: Any, outermost: bool = False) -> set[int] | None:
    """The possible numbers of rows of a column, or of several in a container; None if it does not say."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return {len(value)} if value.ndim else None
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return _common(value.values())
    if not isinstance(value, list | tuple):
        return None
    inside = _common(value)
    if outermost and any(isinstance(one, torch.Tensor) and one.ndim for one in value):
        return inside
    # A list is itself a column, of texts or of tensors that differ in length, or it holds columns.
    return (inside or set()) | {len(value)}


def _common(columns: Any) -> set[int] | None:
    known = [counts for counts in map(_counts, columns) if counts is not None]
    return set.intersection(*known) if known else None


class Prefetcher:
    """Prepares the next `depth` chunks in a thread of its own.

    The thread ends with `close`, or when nothing references this object any more.
    """

    def __init__(self, chunks: Iterator[list[Any]], depth: int) -> None:
        self._chunks = chunks
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._ahead = deque(self._pool.submit(next, chunks) for _ in range(depth))

    def next(self) -> list[Any]:
        """The next chunk. Raises what preparing it raised, on each call; StopIteration at the end of the chunks."""
        chunk = self._ahead[0].result()
        self._ahead.popleft()
        self._ahead.append(self._pool.submit(next, self._chunks))
        return chunk

    def close(self) -> None:
        """End the thread and wait until it has ended."""
        self._pool.shutdown(cancel_futures=True)
