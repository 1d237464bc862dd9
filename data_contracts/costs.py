"""What work used besides time (requests to the store, bytes that it moved, energy), and what each month's runs used.

`MonthCosts` is what the runs of one store used in a calendar month, kept when `gc` has deleted the runs themselves.
"""

from __future__ import annotations

import operator
from typing import Annotated

from pydantic import ConfigDict, Field

from data_contracts.canonical import Month
from data_contracts.records import HandOff, Record

# More than all stores of the world hold; a larger number in a file is damage.
Count = Annotated[int, Field(ge=0, le=2**80)]


class Resources(Record):
    """Quantities that add up; each is counted by one process, and charged to one payer.

    Attributes:
        put_requests: to the store, of the class of PUT: writing and listing; get_requests: of the class of GET.
        written_bytes, read_bytes: of the store, by these requests.
        millijoules: measured energy; None if nothing could be measured.
        gpu_busy_ms: milliseconds in which accelerators computed, summed over them; None if nothing says so.
        elsewhere: whether another process on the machine measures its energy, and this one must not.
    """

    # Heartbeats in a store hold this record, and a later version may add to it.
    model_config = ConfigDict(extra="ignore")

    put_requests: Count = Field(default=0, exclude_if=operator.not_)
    get_requests: Count = Field(default=0, exclude_if=operator.not_)
    written_bytes: Count = Field(default=0, exclude_if=operator.not_)
    read_bytes: Count = Field(default=0, exclude_if=operator.not_)
    millijoules: Count | None = Field(default=None, exclude_if=lambda known: known is None)
    gpu_busy_ms: Count | None = Field(default=None, exclude_if=lambda known: known is None)
    elsewhere: bool = Field(default=False, exclude_if=operator.not_)

    def __add__(self, other: Resources) -> Resources:
        """The sum; what only one of both knows counts as it does there."""
        return Resources(
            put_requests=self.put_requests + other.put_requests,
            get_requests=self.get_requests + other.get_requests,
            written_bytes=self.written_bytes + other.written_bytes,
            read_bytes=self.read_bytes + other.read_bytes,
            millijoules=_added(self.millijoules, other.millijoules),
            gpu_busy_ms=_added(self.gpu_busy_ms, other.gpu_busy_ms),
            elsewhere=self.elsewhere or other.elsewhere,
        )

    def __sub__(self, other: Resources) -> Resources:
        """What `other` does not contain; never less than nothing."""
        return Resources(
            put_requests=max(self.put_requests - other.put_requests, 0),
            get_requests=max(self.get_requests - other.get_requests, 0),
            written_bytes=max(self.written_bytes - other.written_bytes, 0),
            read_bytes=max(self.read_bytes - other.read_bytes, 0),
            millijoules=_without(self.millijoules, other.millijoules),
            gpu_busy_ms=_without(self.gpu_busy_ms, other.gpu_busy_ms),
            elsewhere=self.elsewhere,
        )

    @property
    def anything(self) -> bool:
        """Whether any quantity is more than 0."""
        counted = (self.put_requests, self.get_requests, self.written_bytes, self.read_bytes)
        return any(counted) or bool(self.millijoules) or bool(self.gpu_busy_ms)

    def part(self, began: int, ended: int, length: int) -> Resources:
        """The share of the time from `began` to `ended` in `length`; shares that tile it add up exactly."""

        def share(whole: int) -> int:
            return whole * ended // length - whole * began // length

        return Resources(
            put_requests=share(self.put_requests),
            get_requests=share(self.get_requests),
            written_bytes=share(self.written_bytes),
            read_bytes=share(self.read_bytes),
            millijoules=None if self.millijoules is None else share(self.millijoules),
            gpu_busy_ms=None if self.gpu_busy_ms is None else share(self.gpu_busy_ms),
            elsewhere=self.elsewhere,
        )


NOTHING = Resources()


class GpuReading(Record):
    """What a GPU's driver says of it at a moment.

    Attributes:
        busy: share of the last moments in which it computed.
        used_bytes, total_bytes: of its memory.
        watts, celsius: None if the driver does not say.
    """

    model_config = ConfigDict(extra="ignore")

    index: int = Field(ge=0, le=1024)
    busy: float = Field(ge=0, le=1)
    used_bytes: Count
    total_bytes: Count
    watts: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    celsius: float | None = Field(default=None, allow_inf_nan=False)


def _added(amount: int | None, other: int | None) -> int | None:
    return other if amount is None else amount if other is None else amount + other


def _without(amount: int | None, other: int | None) -> int | None:
    return None if amount is None else max(amount - (other or 0), 0)


Known = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MonthLine(Record):
    """What one run used in a month for one stage and cause, on one kind of machine.

    Attributes:
        pool: the work pool of the nodes; "": not of one.
        gpu_seconds: the known part; uncounted_s: node-seconds of nodes whose GPUs nobody knows.
        amount: the known part of its cost, in `currency`; unpriced_s: node-seconds without a known price.
        joules, grams: of months that an earlier Trainwright kept, which estimated energy and carbon.
    """

    run_id: str
    pipeline: str
    model: str
    tags: dict[str, str]
    stage: str
    cause: str
    machine: str
    pool: str = Field(default="", exclude_if=operator.not_)
    node_seconds: Known
    gpu_seconds: Known
    uncounted_s: Known = Field(default=0.0, exclude_if=operator.not_)
    unpriced_s: Known = 0.0
    currency: str = "USD"
    amount: Known = 0.0
    joules: Known = 0.0
    grams: Known = 0.0
    used: Resources = NOTHING


class MonthCosts(HandOff):
    """A month's figures of a store, created once.

    Attributes:
        month: such as 2026-10, in UTC.
        made: when, in ISO.
        unreadable: runs whose records were damaged, and that no line counts.
        so_far: runs that had not ended, and were counted up to then.
        has_pools: whether lines name their pools; those of an earlier Trainwright do not.
    """

    month: Month
    made: str
    lines: list[MonthLine]
    unreadable: list[str] = Field(default_factory=list)
    so_far: list[str] = Field(default_factory=list)
    has_pools: bool = Field(default=False, exclude_if=operator.not_)
