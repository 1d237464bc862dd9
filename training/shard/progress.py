"""Reports the progress of a long piece of work from time to time: rows, rows a second and the seconds left."""

from __future__ import annotations

import time
from collections.abc import Callable

from data_contracts.messages.raw_data import ShardProgress

Report = Callable[[ShardProgress], None]

EVERY_S = 0.5


class Meter:
    """Counts rows through the phases of some work.

    Args:
        report: called at the end of a phase, and before that every half second at most.
    """

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._clock = report, clock
        self.begin("", None)

    def begin(self, phase: str, total: int | None, total_bytes: int = 0) -> None:
        """Begin a phase of `total` rows; if that is unknown, `total_bytes` measures the work."""
        self._phase, self._total, self._total_bytes = phase, total, total_bytes
        self._rows = self._bytes = 0
        self._started = self._told = self._clock()

    def add(self, rows: int, of_bytes: int = 0) -> None:
        """Add rows that are done, and the bytes that they came from."""
        self._rows += rows
        self._bytes += of_bytes
        now = self._clock()
        done = self._rows == self._total or (self._bytes and self._bytes == self._total_bytes)
        if not done and now - self._told < EVERY_S:
            return
        self._told = now
        seconds = max(now - self._started, 1e-9)
        share = self._rows / self._total if self._total else self._bytes / max(self._total_bytes, 1)
        self._report(
            ShardProgress(
                phase=self._phase,
                rows=self._rows,
                total=self._total,
                rows_per_s=round(self._rows / seconds),
                share=round(share, 4),
                seconds_left=round(seconds * (1 - share) / share, 1) if share else None,
            )
        )
