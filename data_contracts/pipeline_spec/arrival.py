"""`contract.arrival`: whether the raw data came, in time and as much as before."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LENGTH = re.compile(r"([0-9]{1,6})([mhdw])")


def length_of(text: str) -> timedelta:
    """The time that `26h`, `90m`, `2d` or `1w` says; ValueError for anything else."""
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a length of time; write 90m, 26h, 2d or 1w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _checked(text: str) -> str:
    length_of(text)
    return text


class ArrivalSpec(Section):
    """Whether the raw data came: judged in every run, also if the report on the same data is reused."""

    column: str | None = None
    """Column of times whose newest value `max_age` is about; default: none."""
    max_age: Annotated[str, AfterValidator(_checked)] | None = None
    """The largest age of the newest row, such as `26h`, at the end of the window or the start of the run."""
    files: str | None = None
    """How a day is written in the files' paths, such as `%Y-%m-%d`: each day of the window must have a file; default:
    not checked."""
    min_share: float | None = Field(default=None, ge=0)
    """The least number of rows, as a share of those of the same window before; default: any."""
    max_share: float | None = Field(default=None, gt=0)
    """The largest number of rows, as a share of those of the same window before; default: any."""
    severity: Literal["critical", "warning", "info"] = "critical"
    """Severity of what is found; `contract.fail_on` says whether it rejects the data; default `critical`."""

    @model_validator(mode="after")
    def _column_and_age(self) -> ArrivalSpec:
        if (self.column is None) != (self.max_age is None):
            raise FieldError("max_age", "max_age and column need each other; give both or neither")
        return self
