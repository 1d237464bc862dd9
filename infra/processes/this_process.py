"""This process: its clock, what it used besides time, and which file and row it is reading.

The clock is the time of day at the process's start, and monotonic time since then. If the time of day is set while the
process works, no length of time changes, so nobody is charged for hours too many, or for nothing. The times of one
process fit together; those of two processes differ as their machines' clocks differed at their starts. Monotonic time
stands still while a machine is suspended, so a suspended machine is not charged.

What it reads, it notes in a file that `infra.child` names, so that its parent can say what it read when it died.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path

from data_contracts.costs import NOTHING, Resources

READING = "TRAINWRIGHT_READING"


_EPOCH_S = time.time() - time.monotonic()


def wall_s(moment: float) -> float:
    """A moment of the monotonic clock in seconds since the epoch."""
    return moment + _EPOCH_S


def now_s() -> float:
    """Seconds since the epoch by this process's clock."""
    return wall_s(time.monotonic())


class Counters:
    """Sums of a process; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._puts = self._gets = self._written = self._read = 0
        self._others = self._taken = NOTHING

    def put(self, num_bytes: int = 0) -> None:
        """Count a request that writes or lists."""
        with self._lock:
            self._puts += 1
            self._written += num_bytes

    def get(self, num_bytes: int = 0) -> None:
        """Count a request of the class of GET."""
        with self._lock:
            self._gets += 1
            self._read += num_bytes

    def received(self, num_bytes: int) -> None:
        """Count the bytes of an answer whose request is counted already."""
        with self._lock:
            self._read += num_bytes

    def add(self, used: Resources) -> None:
        """Add what a child used, or the energy of a while."""
        with self._lock:
            self._others += used

    def total(self) -> Resources:
        """Everything since the process began."""
        with self._lock:
            own = Resources(
                put_requests=self._puts, get_requests=self._gets, written_bytes=self._written, read_bytes=self._read
            )
            return own + self._others

    def take(self) -> Resources:
        """The quantities since the last call, so that each has one payer."""
        with self._lock:
            total = self.total()
            new, self._taken = total - self._taken, total
            return new


COUNTERS = Counters()


def note(file: str, row: int) -> None:
    """Note that a row is about to be read. A later note, also of another process, takes the place of this one."""
    if path := os.environ.get(READING):
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps([file, row]))


def noted(path: Path) -> tuple[str, int] | None:
    """The file and the row, from 0, that were noted last; None if none were, or if the process died meanwhile."""
    try:
        file, row = json.loads(path.read_text())
        return str(file), int(row)
    except (OSError, ValueError):
        return None
