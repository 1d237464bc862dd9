"""The course of a training, generation by generation, and how to make it again in the same way.

| record | written by | where |
|---|---|---|
| `Segment` | rank 0 | `generations` in the provenance of every checkpoint |
| `StopAt` | a conductor that replays a training | in a `Launch` |
"""

from __future__ import annotations

import operator

from pydantic import Field

from data_contracts.handoffs import Record


class MachineFacts(Record, extra="ignore"):
    """The facts of a machine and its libraries that decide the bits of a training.

    Attributes:
        cpu: the model's name; flags: a digest of the CPU's flags.
        device: on which rank 0 computes, with the model of a GPU.
        build: a digest of how torch was built; vector: the vector instructions that it uses.
        threads: of a rank.
    """

    system: str = ""
    machine: str = ""
    cpu: str = ""
    flags: str = ""
    libc: str = ""
    python: str = ""
    torch: str = ""
    lightning: str = ""
    build: str = ""
    vector: str = ""
    device: str = ""
    threads: int = 0


class Segment(Record, extra="ignore"):
    """The steps of a training that one generation did, from the checkpoint that it resumed from.

    The segment ends where the next one begins; the last one ends with the checkpoint that holds the list.

    Attributes:
        training: directory of the attempt; generation: its number in it.
        first_step: the step of the checkpoint that it resumed from; 0 if it began the training.
        resumed_from: the id of that checkpoint; None if it began the training.
        held: whether that checkpoint has the loss on a held batch, as the last one of a generation has.
        nodes, devices: nodes, and ranks of each node.
        micro_batch: rows that a device takes at once; 0 with the user's own loader.
        shard_ranks: `train.shard_ranks`, which makes the mesh of a strategy that shards and replicates.
        skip: samples (from, to) that it skipped.
    """

    training: str
    generation: int
    first_step: int = Field(ge=0)
    resumed_from: str | None = None
    held: bool = False
    nodes: int = Field(ge=1)
    devices: int = Field(ge=1)
    strategy: str = ""
    micro_batch: int = Field(default=0, ge=0)
    shard_ranks: int | None = None
    skip: list[tuple[int, int]] = Field(default_factory=list)
    facts: MachineFacts = MachineFacts()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices


class StopAt(Record):
    """Where a generation that replays another one ends: as if it had been asked to stop after this step.

    Attributes:
        may_be_last: whether the checkpoint is saved as the last one of a generation that was asked to stop, for which
            the loss on a held batch is recorded.
    """

    step: int = Field(ge=1)
    may_be_last: bool = Field(default=False, exclude_if=operator.not_)
