"""Times in sentences. Records keep ISO 8601; people read `2026-11-25 07:12 UTC`."""

from __future__ import annotations

from datetime import UTC, datetime


def readable(moment: str, *, seconds: bool = False) -> str:
    """A time in ISO 8601 as a person reads it, in UTC and rounded down; a text that is not a time stays as it is.

    Args:
        seconds: for two times that may be less than a minute apart.
    """
    try:
        found = datetime.fromisoformat(moment)
        if found.tzinfo is None:
            return moment
        found = found.astimezone(UTC)
    except (ValueError, OverflowError):
        return moment
    return f"{found:%Y-%m-%d} {found.time().isoformat('seconds' if seconds else 'minutes')} UTC"
