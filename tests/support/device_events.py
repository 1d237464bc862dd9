"""A device that does queued work when a test says so, with events as CUDA records them."""

from __future__ import annotations

from typing import Any


class Device:
    """Seconds of work that it was given, and of those that it has done."""

    def __init__(self) -> None:
        self.given_s = self.done_s = 0.0
        self.waits = 0
        self.failed = False

    def give(self, seconds: float) -> None:
        """Queue work."""
        self.given_s += seconds

    def do(self, seconds: float) -> None:
        """Let it work for so long, or until it has done everything."""
        self.done_s = min(self.given_s, self.done_s + seconds)

    def event(self) -> Event:
        """An event of this device."""
        return Event(self)


class Event:
    """Where it is recorded, the device gets to once it has done all that it was given before."""

    def __init__(self, device: Device) -> None:
        self._device, self._at = device, 0.0

    def record(self) -> None:
        """Queue it."""
        self._at = self._device.given_s

    def query(self) -> bool:
        """Whether the device got here; a device that has failed raises, as CUDA does from then on."""
        if self._device.failed:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return self._device.done_s >= self._at

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds between two events that the device has passed."""
        assert self.query()
        assert end.query()
        return 1000 * (end._at - self._at)

    def synchronize(self) -> None:
        """Wait for the device."""
        self._device.waits += 1
        self._device.do(self._at - self._device.done_s)
