"""`contract.arrival`: whether the raw data came, in time and as much as before."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_YEAR = timedelta(days=365)
_LENGTH = re.compile(r"([0-9]{1,6})([mhdw])")


def length_of(text: str) -> timedelta:
    """The time that `26h`, `90m`, `2d` or `1w` says; ValueError for anything else."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a length of time; write 90m, 26h, 2d or 1w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def up_to_a_year(text: str) -> str:
    """A length of time as it is written; ValueError if it is zero or longer than a year."""
    try:
        fits = timedelta(0) < length_of(text) <= _YEAR
    except OverflowError:
        fits = False
    if not fits:
        raise ValueError(f"{text!r} is not between 1m and {_YEAR.days}d")
    return text


def _checked(text: str) -> str:
    length_of(text)
    return text


def _daily(pattern: str) -> str:
    day, at_noon, next_day = (datetime(2026, 1, at, hour).strftime(pattern) for at, hour in ((1, 0), (1, 12), (2, 0)))
    if day != at_noon:
        raise ValueError(f"{pattern!r} has a time of day, and files are looked up by day; leave the time out")
    if day == next_day:
        raise ValueError(f"{pattern!r} is the same for every day; write how a day is named, such as %Y-%m-%d")
    return pattern


class ArrivalSpec(Section):
    """Whether the raw data came: judged in every run, also if the report on the same data is reused."""

    column: str | None = None
    """Column of times that `max_age` and `max_late` are about; default: none."""
    max_age: Annotated[str, AfterValidator(_checked)] | None = None
    """The largest age of the newest row, such as `26h`, at the end of the window or the start of the run."""
    max_late: float | None = Field(default=None, ge=0, le=1)
    """The largest share of rows whose time is before the window, so which belong to an earlier one; default: any."""
    files: Annotated[str, AfterValidator(_daily)] | None = None
    """How a day is written in the files' paths, such as `%Y-%m-%d`: each day of the window must have a file; default:
    not checked."""
    min_share: float | None = Field(default=None, ge=0)
    """The least number of rows, as a share of those of the same window before; default: any."""
    max_share: float | None = Field(default=None, gt=0)
    """The largest number of rows, as a share of those of the same window before; default: any."""
    severity: Literal["critical", "warning", "info"] = "critical"
    """Severity of what is found; `contract.fail_on` says whether it rejects the data; default `critical`."""

    @model_validator(mode="after")
    def _consistent(self) -> ArrivalSpec:
        asked = [
            name
            for name in ("max_age", "max_late", "files", "min_share", "max_share")
            if getattr(self, name) is not None
        ]
        of_column = [name for name in asked if name in ("max_age", "max_late")]
        if self.column is None and of_column:
            raise FieldError(of_column[0], f"needs a column of times; give column beside {of_column[0]}")
        if self.column is not None and not of_column:
            raise FieldError("column", "has no effect without max_age or max_late; give one of them, or leave it out")
        if not asked:
            raise FieldError(
                (), "judges nothing; give max_age, max_late, files, min_share or max_share, or leave arrival out"
            )
        if self.min_share is not None and self.max_share is not None and self.min_share > self.max_share:
            raise FieldError(
                "min_share", f"is {self.min_share:g}, more than max_share, {self.max_share:g}; no data fits"
            )
        return self

    @property
    def of_windows(self) -> list[str]:
        """The settings that have a meaning only if each run reads a window."""
        return [name for name in ("max_late", "files") if getattr(self, name) is not None]
