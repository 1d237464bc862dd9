"""How a run is started: the options of a command, a schedule or CI, in one type."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from data_contracts.run_report import Trigger

# How the keys begin that a flow run gets if nobody chose one.
SCHEDULE_KEY, FLOW_RUN_KEY, SENSOR_KEY = "schedule:", "flow-run:", "sensor:"


def scheduled_key(deployment: object, time: datetime | None) -> str:
    """The idempotency key of the run that a deployment starts at a time of its schedule."""
    return f"{SCHEDULE_KEY}{deployment}:{time and time.astimezone(UTC)}"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a caller chooses beside the spec, its overrides and the store.

    Attributes:
        window: `START..END`, or a length that ends at `scheduled` (or now).
        key: idempotency key; None: for CI `ci_key`, else every call is a run of its own.
        trigger: what started the run.
        scheduled: when a schedule meant the run to start.
        fresh: begin a new training even if an unfinished or finished training has the same key.
        rehash: read every raw file again to take its digest.
    """

    window: str | None = None
    key: str | None = None
    trigger: Trigger = "cli"
    scheduled: datetime | None = None
    fresh: bool = False
    rehash: bool = False

    @property
    def has_own_key(self) -> bool:
        """Whether the key was made for this flow run; no other flow run has it."""
        return self.key is not None and self.key.startswith((SCHEDULE_KEY, FLOW_RUN_KEY, SENSOR_KEY))


DEFAULTS = RunOptions()
