"""When a GPU does what its rank has asked for, by events that the device itself records. Reading never waits for it.

The host only queues work, so by its clock a step takes as long as queueing it: a slow device would look fast, and a
kernel that never ends would look like progress.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None:
        """Have the device note when it gets here."""

    def query(self) -> bool:
        """Whether the device got here."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to a later one."""


@dataclass
class _Mark:
    place: str
    event: Event
    begins_step: bool
    ends_batch: bool


def timed_event() -> Event:
    """An event of the current CUDA device."""
    import torch

    event: Event = torch.cuda.Event(enable_timing=True)
    return event


class DeviceTimes:
    """The rank's places as its device passes through them.

    The training thread adds marks. One thread at a time may look.

    Attributes:
        place: where the device is; since: when it was first seen there, by `clock`.
        spent_s: seconds in each place. batches: micro-batches that are done.
        step_s: lengths of the steps that are done and that nobody has taken yet, from `begins_step` to the end of the
            last micro-batch.
    """

    def __init__(
        self, make_event: Callable[[], Event] = timed_event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.place, self.since = "starting", clock()
        self.spent_s: dict[str, float] = {}
        self.batches = 0
        self.step_s: list[float] = []
        self._make_event, self._clock = make_event, clock
        self._ahead: deque[_Mark] = deque()
        self._reached: _Mark | None = None
        self._in_step_s = self._step_s = 0.0

    def mark(self, place: str, *, begins_step: bool = False, ends_batch: bool = False) -> None:
        """Queue a mark: the device enters `place` when it gets here."""
        event = self._make_event()
        event.record()
        self._ahead.append(_Mark(place, event, begins_step, ends_batch))

    def look(self) -> bool:
        """Count what the device has done since the last look; whether it has done all that was marked."""
        while self._ahead and self._ahead[0].event.query():
            mark = self._ahead.popleft()
            if self._reached is not None:
                seconds = self._reached.event.elapsed_time(mark.event) / 1000
                self.spent_s[self.place] = self.spent_s.get(self.place, 0.0) + seconds
                self._in_step_s += seconds
            if mark.ends_batch:
                self.batches += 1
                self._step_s = self._in_step_s
            if mark.begins_step:
                if self._step_s:
                    self.step_s.append(self._step_s)
                self._in_step_s = self._step_s = 0.0
            self._reached, self.place, self.since = mark, mark.place, self._clock()
        return not self._ahead
