"""The parts of a path in a store: names, numbers and paths, each checked."""

from __future__ import annotations

from data_contracts.canonical import valid_name, valid_path
from data_contracts.errors import UsageError


def check_path(path: str, what: str = "path in a store") -> str:
    """`path`, if it stays below the folder it is relative to (see `valid_path`); else UsageError."""
    try:
        return valid_path(path)
    except ValueError as error:
        raise UsageError(
            f"{path!r} cannot be a {what}.",
            remedy="Use a relative path in UTF-8 with '/' and without '..', backslashes or control characters.",
        ) from error


def name_part(text: str) -> str:
    """A name as a part of a path; UsageError if it cannot be one."""
    try:
        return valid_name(text)
    except ValueError as error:
        raise UsageError(f"{error}.") from error


def number_part(value: int) -> int:
    """A number as a part of a path; UsageError if it is negative."""
    if value < 0:
        raise UsageError(f"{value} cannot be a number in a store's path: it is negative.")
    return value
