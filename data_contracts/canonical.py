"""The forms of what is stored: canonical JSON and the digests over it, names and paths, days and times.

The same value gives the same bytes on any day and machine. Records keep times in ISO 8601; people read `2026-11-25
07:12 UTC`.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# Surrogates stand for bytes of a file name that are not UTF-8.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
KEY_LENGTH = 40
_MONTH = re.compile(r"(?!0000)[0-9]{4}-(0[1-9]|1[0-2])")


def canonical(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no white space; ValueError for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def plain(value: Any) -> bytes:
    """UTF-8 JSON in the value's own order, for values whose order matters (splits, arguments)."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of `canonical(value)`, 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def reuse_key(stage: str, stage_version: int, settings: Any, inputs: Any, code_digest: str | None) -> str:
    """The reuse key of a stage's result: the first 40 hexadecimal digits of the digest of what decides it."""
    return digest(
        {"stage": stage, "stage_version": stage_version, "settings": settings, "inputs": inputs, "code": code_digest}
    )[:KEY_LENGTH]


def is_name(text: str) -> bool:
    """Whether `text` may be a name (see `valid_name`)."""
    return _NAME.fullmatch(text) is not None


def valid_name(name: str) -> str:
    """`name`, if it may become a path: `[a-z0-9][a-z0-9._-]{0,62}`; else ValueError."""
    if not is_name(name):
        raise ValueError(
            f"{name!r} cannot be a name: use 1 to 63 characters (a-z, 0-9, '.', '_', '-') that begin with a letter or "
            "digit"
        )
    return name


def valid_path(path: str) -> str:
    """`path`, if it stays below the folder it is relative to; else ValueError.

    Refused: empty, absolute, `.` or `..` as a part, backslashes, control characters, bytes that are not UTF-8, parts
    over 255 bytes.
    """
    parts = path.split("/")
    if _UNSAFE.search(path) or any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts):
        raise ValueError(f"{path!r} is not a path below a store")
    return path


Name = Annotated[str, AfterValidator(valid_name)]
StorePath = Annotated[str, AfterValidator(valid_path)]


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
