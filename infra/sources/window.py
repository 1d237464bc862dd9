"""The part of the data that a run reads: START..END, half open, fixed when the run is resolved."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from data_contracts.errors import UsageError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LENGTH = re.compile(r"(\d+)([smhdw])")
_REMEDY = "Write START..END in ISO format, such as 2026-01-01..2026-02-01, or a length, such as 7d or 12h."


@dataclass(frozen=True)
class Window:
    """Times t with start <= t < end, both with a time zone; `parse_window` reads what `str` writes."""

    start: datetime
    end: datetime

    @classmethod
    def from_iso(cls, start: str, end: str) -> Window:
        """The window between two ISO times; a time without a zone is UTC."""
        return cls(_aware(datetime.fromisoformat(start)), _aware(datetime.fromisoformat(end)))

    def __str__(self) -> str:
        return f"{self.start.isoformat()}..{self.end.isoformat()}"


def parse_window(text: str, now: datetime) -> Window:
    """Parse a window.

    Args:
        text: `START..END` in ISO format (without a zone: UTC), or a length that ends at `now`: `12h`, `7d`, `2w`.
        now: the scheduled time, or the present.

    Raises:
        UsageError: `text` is neither, or END is not after START.
    """
    now = _aware(now)
    length = _LENGTH.fullmatch(text.strip())
    try:
        if length:
            start, end = now - timedelta(**{_UNITS[length[2]]: int(length[1])}), now
        else:
            first, dots, last = text.partition("..")
            if not dots:
                raise ValueError("it has no `..`")
            window = Window.from_iso(first.strip(), last.strip())
            start, end = window.start, window.end
    except (ValueError, OverflowError) as error:
        raise UsageError(f"The window {text!r} cannot be read: {error}.", remedy=_REMEDY) from error
    if start >= end:
        raise UsageError(f"The window {text!r} is empty: its end is not after its start.", remedy=_REMEDY)
    return Window(start, end)


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
