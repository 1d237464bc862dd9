"""The clock of this process: the time of day at its start, and monotonic time since then.

If the time of day is set while the process works, no length of time changes, so nobody is charged for hours too many,
or for nothing. The times of one process fit together; those of two processes differ as their machines' clocks differed
at their starts. Monotonic time stands still while a machine is suspended, so a suspended machine is not charged.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """A clock that cannot be set.

    Args:
        wall: seconds since the epoch, read once.
        monotonic: seconds since any moment.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._epoch = wall() - monotonic()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at(self._monotonic())

    def at(self, moment: float) -> float:
        """A moment of the monotonic clock in seconds since the epoch."""
        return moment + self._epoch


PROCESS = Clock()


def now_s() -> float:
    """Seconds since the epoch by this process's clock."""
    return PROCESS.now()
