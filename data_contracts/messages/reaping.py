"""Requests to, reports and answers of the child in which the reaper reads the records of a store."""

from __future__ import annotations

from typing import Any, Final

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


class RunReaped(Message):
    """The outcome for a run, a `tasks.run.reaping.Reaped` as JSON."""

    reaped: dict[str, Any]


class StoreReaped(Message):
    """All runs were looked at."""


REAP: Final = Child("tasks.run.reap_worker", ReapRequest, StoreReaped)
