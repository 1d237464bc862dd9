"""Whether this process was asked to stop. A library may lose a signal's exception; this record is never lost."""

from __future__ import annotations

# Numbers of the received signals, in order; signal handlers add them here.
received: list[int] = []


def check() -> None:
    """Raise KeyboardInterrupt if a signal was received; call this where work begins and while waiting for it."""
    if received:
        raise KeyboardInterrupt
