"""Sizes and durations for people to read; not for programs or exact comparisons.

humanize is imported where it is used, because no rank and no node needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

BYTES = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)]
SECONDS = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]


def size(num_bytes: int) -> str:
    """Bytes in the binary unit that fits: `1.5 KiB`."""
    import humanize

    return humanize.naturalsize(num_bytes, binary=True).replace("Byte", "byte")


def duration(seconds: float) -> str:
    """Whole seconds in words: `1 hour and 5 seconds`."""
    import humanize

    return humanize.precisedelta(round(seconds), format="%d")


def in_two_units(seconds: float) -> str:
    """Whole seconds in their two largest units, such as `3 s`, `1 min 15 s` or `1 d 3 h`."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def in_words(value: float, units: Sequence[tuple[str, float]]) -> str:
    """A figure in the largest unit that gives at least 1, such as `3.4 MB`."""
    unit, size = next(((unit, size) for unit, size in units if value >= size), units[-1])
    return f"{value / size:.3g} {unit}" if size > 1 else f"{value:.0f} {unit}"
