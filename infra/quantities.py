"""Sizes and durations for people to read; not for programs or exact comparisons.

humanize is imported where it is used, because no rank and no node needs it.
"""

from __future__ import annotations


def size(num_bytes: int) -> str:
    """Bytes in the binary unit that fits: `1.5 KiB`."""
    import humanize

    return humanize.naturalsize(num_bytes, binary=True).replace("Byte", "byte")


def duration(seconds: float) -> str:
    """Whole seconds in words: `1 hour and 5 seconds`."""
    import humanize

    return humanize.precisedelta(round(seconds), format="%d")
