"""Counts what this process, and the children whose answers it has read, used besides time."""

from __future__ import annotations

import threading

from data_contracts.costs.resources import NOTHING, Resources


class Counters:
    """Sums of a process; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            return self._total()

    def take(self) -> Resources:
        """The quantities since the last call, so that each has one payer."""
        with self._lock:
            total = self._total()
            new, self._taken = total - self._taken, total
            return new

    def _total(self) -> Resources:
        own = Resources(
            put_requests=self._puts, get_requests=self._gets, written_bytes=self._written, read_bytes=self._read
        )
        return own + self._others


PROCESS = Counters()
