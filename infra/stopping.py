"""Whether this process was asked to stop: what a signal raises can be lost inside a library, this fact is not."""

from __future__ import annotations

# Numbers of the signals that came, in order; whoever handles them notes them here.
came: list[int] = []


def check() -> None:
    """KeyboardInterrupt if a signal came; to be called where work begins and while it is waited for."""
    if came:
        raise KeyboardInterrupt
