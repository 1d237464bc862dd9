"""The processes that carry out a run, and what followed when one of them died."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from data_contracts.records import HandOff


class Execution(HandOff):
    """A process that carries a run out: written when it has taken the run's lease, before it does anything else.

    Attributes:
        token: the lease's fencing token, which tells this execution from all others of the run.
        ends: how often the run had ended before, without a final verdict.
        flow_run: id of its flow run in Prefect; None if it has none.
    """

    run_id: str
    token: int
    ends: int
    flow_run: str | None = None
    started: str = ""


class Crash(HandOff):
    """A process that died over a run, and that its run is resumed; the budget `retry.crashed` counts these.

    Attributes:
        n: from 0; created once, so two reapers cannot answer one crash twice.
        token: the newest fencing token before the resuming process takes the lease.
        ends: how often the run had ended before. Any end begins a new budget.
        flow_run, run_count: the flow run that died, and how often Prefect had begun it.
        by: who found it.
    """

    run_id: str
    n: int
    token: int
    ends: int
    flow_run: str | None = None
    run_count: int = Field(default=0, exclude_if=lambda count: not count)
    at: str
    by: str


def resume_key(run_id: str, n: int) -> str:
    """Prefect's idempotency key of the request after crash `n`: the same for two reapers that answer one crash."""
    return f"reap/{run_id}/{n}"


class BackfilledWindow(HandOff):
    """A window of the data that a backfill has begun, or its run's verdict. Times are UTC, ISO 8601."""

    start: str
    end: str
    run_id: str | None = None
    verdict: str | None = None
    by: str
    at: str


class ScheduledTime(HandOff):
    """A time of a schedule that has its run; kept when the run is deleted. `key` is the run's idempotency key."""

    key: str
    run_id: str
    at: str


@dataclass(frozen=True)
class FlowRunState:
    """What Prefect says of a flow run.

    Attributes:
        state: `gone`: unknown there, or there is none; `ended`: it failed, crashed or completed; `cancelled`: it was
            cancelled or is about to be; `stopped`: it waits for a person; `asked`: it waits for a worker; `running`: as
            far as is known.
        run_count: how often it was begun.
    """

    state: Literal["gone", "ended", "cancelled", "stopped", "asked", "running"]
    run_count: int = 0
