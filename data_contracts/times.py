"""Times in sentences. Records keep ISO 8601; people read `2026-11-25 07:12 UTC`."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator

_MONTH = re.compile(r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])")


def iso_day(text: str) -> str:
    """`text`, if it is a day such as 2026-11-09; else ValueError."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"{text!r} is not a day; write it as 2026-11-09") from None


def iso_month(text: str) -> str:
    """`text`, if it is a month such as 2026-11; else ValueError."""
    if not _MONTH.fullmatch(text):
        raise ValueError(f"{text!r} is not a month; write it as 2026-11")
    return text


def month_of(moment: datetime) -> tuple[datetime, datetime]:
    """The calendar month (UTC) in which a time lies: its start, and the start of the next month.

    OverflowError in the last month that a date can have.
    """
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=31)).replace(day=1)


Day = Annotated[str, AfterValidator(iso_day)]
Month = Annotated[str, AfterValidator(iso_month)]


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
