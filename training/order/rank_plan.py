"""Which rows each rank takes at each step: arithmetic on the order, without reading or randomness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import TrainSpec


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

    def position(self, samples: int) -> tuple[int, int]:
        """Epoch and step of the cursor (samples consumed, over all ranks and epochs)."""
        epoch, step = divmod(samples // self.global_batch, self.steps_per_epoch)
        return epoch, step


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
