"""Remembers which processes were silent, so that nobody waits again for their other leases (ADR 0025)."""

from __future__ import annotations

from infra.processes.process_id import ProcessId, this_process

# A silent process may have been stopped only for a while, so after this time its leases are waited for again.
SILENT_FOR_S = 300.0


class SilentProcesses:
    """Processes whose lease this process took because its beat had stood still. Threads may share it.

    `now` is the time of the taker's own clock, in seconds.
    """

    def __init__(self) -> None:
        self._since: dict[ProcessId, float] = {}

    def note(self, process: ProcessId | None, now: float) -> None:
        """Remember a process, unless it is this one or unknown (None), and forget those of long ago."""
        for known, since in list(self._since.items()):
            if now - since >= SILENT_FOR_S:
                self._since.pop(known, None)  # another thread may have dropped it
        if process is not None and process != this_process():
            self._since[process] = now

    def has(self, process: ProcessId, now: float) -> bool:
        """Whether a process was silent not long ago."""
        return now - self._since.get(process, -SILENT_FOR_S) < SILENT_FOR_S
