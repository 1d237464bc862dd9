"""A clock that stands still until a test moves it."""

from __future__ import annotations


class Clock:
    """Answers like `time.monotonic`; a test adds to `now`."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
