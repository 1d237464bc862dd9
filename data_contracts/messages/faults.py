"""A training of a game day, the fault that it gets, and what its ranks record about the fault in the store.

| message | written by | read by | where |
|---|---|---|---|
| `GameTraining` | conductor of a game day | a training of it | argument of the process |
| `PlannedFault` | conductor of a game day | the ranks | in `Launch` |
| `InjectedFault` | the rank that injects it, before it does | the other ranks, the game day | `game-day/injected.json` of the training |
| `StepAfter` | rank 0 of a later generation | the game day | `game-day/first.json`, `game-day/caught-up.json` |
"""  # noqa: E501

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data_contracts.handoffs import Record
from data_contracts.messages.message import Message

FaultName = Literal[
    "rank-killed",
    "rank-stopped",
    "rank-hung",
    "rank-asked-to-stop",
    "node-killed",
    "node-stopped",
    "conductor-killed",
    "checkpoint-damaged",
]


class PlannedFault(Record, extra="ignore"):
    """A fault to inject once.

    Attributes:
        every_steps: between two checkpoints; the fault comes in the middle.
        checkpoints: how many must be committed before.
        wait_s: how long a step waits for them; then the fault comes after a later checkpoint.
    """

    name: FaultName
    every_steps: int = Field(ge=2)
    checkpoints: int = Field(default=1, ge=1)
    wait_s: float = Field(default=20.0, ge=0, allow_inf_nan=False)


class GameTraining(Message):
    """A short training that a game day begins or continues.

    Attributes:
        spec: path of the YAML file; overrides: with those of the game day itself.
        store: address of the game day's own store.
        fresh: begin a new training; False continues the newest one, whose conductor was killed.
    """

    spec: str
    overrides: list[str]
    window: str | None
    store: str
    fault: PlannedFault | None
    fresh: bool


class InjectedFault(Message, extra="ignore"):
    """A fault that is injected now.

    Attributes:
        generation, rank, node, host: where.
        step: the last step that was taken before.
        checkpoint: URI of the newest committed checkpoint.
    """

    name: FaultName
    generation: int
    rank: int
    node: int
    host: str
    step: int
    checkpoint: str


class StepAfter(Message, extra="ignore"):
    """A step of a generation that began after the fault.

    Attributes:
        resumed_from: the step from which its generation continued.
    """

    generation: int
    step: int
    resumed_from: int
