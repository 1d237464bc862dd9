"""When a child that makes no progress is hung: a limit on the time between two pieces of work, not on the whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from data_contracts.messages.children import Advanced

# As for a rank: half an hour where a piece of work may take long, and ten times the longest piece of work seen.
STALL_S = 1800.0
SLOWEST_TIMES = 10


@dataclass(frozen=True)
class IdleLimit:
    """How long a child may make no progress.

    Attributes:
        hang_s: seconds between two pieces of work. Ten times the longest interval so far applies if that is longer.
        stall_s: the same limit before the first piece of work and in phases that the child calls long; no limit
            exceeds it.
        excused: called when the limit is reached: whether the time does not count, because the store is unreachable.
    """

    hang_s: float
    stall_s: float = STALL_S
    excused: Callable[[], bool] = lambda: False


class IdleWatch:
    """Takes a child's reports and says when it has made no progress for too long."""

    def __init__(self, limit: IdleLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._moved = clock()
        self._slowest_s = 0.0
        self._long = True

    def hear(self, report: Advanced) -> None:
        """Take a report in: any report is progress."""
        now = self._clock()
        if not self._long and not report.long:
            self._slowest_s = max(self._slowest_s, now - self._moved)
        self._moved, self._long = now, report.long

    def overdue_s(self) -> float:
        """Seconds without progress if they exceed the limit; else 0."""
        idle_s = self._clock() - self._moved
        limit, own = self._limit, max(self._limit.hang_s, SLOWEST_TIMES * self._slowest_s)
        if idle_s <= (limit.stall_s if self._long else min(limit.stall_s, own)):
            return 0.0
        if limit.excused():
            self._moved = self._clock()
            return 0.0
        return idle_s
