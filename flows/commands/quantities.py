"""Figures with the unit that fits, for tables: `3.4 MB`, `12 min`."""

from __future__ import annotations

from collections.abc import Sequence

BYTES = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)]
SECONDS = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]


def in_words(value: float, units: Sequence[tuple[str, float]]) -> str:
    """A figure in the largest unit that gives at least 1, such as `3.4 MB`."""
    unit, size = next(((unit, size) for unit, size in units if value >= size), units[-1])
    return f"{value / size:.3g} {unit}" if size > 1 else f"{value:.0f} {unit}"
