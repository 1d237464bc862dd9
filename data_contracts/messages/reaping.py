"""Requests to, reports and answers of the child in which the reaper reads the records of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from data_contracts.messages.children import Child, StoreAddress
from data_contracts.messages.message import Message


class ReapRequest(Message):
    """Look once for dead runs in a store, and have each resumed.

    Attributes:
        pool: its workers resume runs that cannot be executed again where they were.
        here: whether the caller may resume a run itself.
        skipped: runs that are not looked at.
    """

    store: StoreAddress
    pool: str
    here: bool
    skipped: list[str]


class RunBegun(Message):
    """The child is about to read the records of this run."""

    run_id: str


@dataclass(frozen=True)
class Reaped:
    """The outcome for a dead run.

    Attributes:
        what: `resumed`: somebody was asked; `here`: the caller must resume it; `ended`: it has a verdict now;
            `cancelled`: so it has, because it was cancelled; `left`: it could not be decided now; `lost`: its records
            cannot be read.
    """

    run_id: str
    store: str
    what: Literal["resumed", "here", "ended", "cancelled", "left", "lost"]
    sentence: str


class RunReaped(Message):
    """The outcome for a run."""

    reaped: Reaped


class StoreReaped(Message):
    """All runs were looked at."""


REAP: Final = Child("tasks.run.reap_worker", ReapRequest, StoreReaped)
