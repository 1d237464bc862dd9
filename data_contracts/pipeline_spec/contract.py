"""`contract`: what must be true of the data before it is used.

`contract.arrival` says whether the raw data came, in time and as much as before; `contract.contamination`, whether rows
of one split may also be in another; `contract.drift`, what the raw data is compared with, and what a change leads to.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Runner, Section, Shorthand

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


class NearSpec(Shorthand):
    """Texts that are almost equal: their sets of shingles (runs of characters) are compared by Jaccard similarity."""

    short_for: ClassVar[str] = "column"

    column: str
    """Column of texts."""
    similarity: float = Field(default=0.8, ge=0.5, le=1)
    """Shared shingles as a share of all shingles of two texts, from which on they are near duplicates; default 0.8."""
    shingle: int = Field(default=5, ge=1, le=32)
    """Characters of a shingle; default 5."""


class ContaminationSpec(Shorthand):
    """Rows that occur in two splits. They are compared as they are stored, after `shards.transform`."""

    short_for: ClassVar[str] = "on_found"

    on_found: Literal["reject", "drop", "warn"] = "reject"
    """What a row in two splits does: `reject` (default) ends the run, `drop` leaves out the copy in the split that is
    used earlier (train before val, val before test) and counts it, `warn` reports it."""
    columns: list[str] | None = Field(default=None, min_length=1)
    """Columns that make two rows the same; default: all but those of `label`, `ignore`, and `shards.split`, and
    `Unnamed: 0` of whole numbers."""
    ignore: list[str] = Field(default_factory=list)
    """Columns that do not count, such as a row's number; default none."""
    label: str | list[str] | None = None
    """Column or columns with the truth, which are not compared; default: the targets of `evaluate.metrics`, where they
    are columns."""
    on_conflict: Literal["reject", "warn"] = "warn"
    """What rows with the same columns and different labels do, in whichever splits: `warn` (default) or `reject`."""
    near: NearSpec | None = None
    """Also find near duplicates of a text column; default no."""

    @property
    def labels(self) -> list[str] | None:
        """The columns of `label`; None if the metrics' targets stand for it."""
        return [self.label] if isinstance(self.label, str) else self.label

    @model_validator(mode="after")
    def _consistent(self) -> ContaminationSpec:
        if self.columns is not None and self.ignore:
            raise FieldError("ignore", "has no effect beside columns; leave it out")
        both = [name for name in self.labels or [] if name in (self.columns or [])]
        if both:
            raise FieldError("label", f"names {both[0]!r}, which columns names, too; leave it out of one of them")
        return self


class DriftSpec(Section):
    """The comparison of the raw data with earlier data, such as the data of the champion."""

    against: str = "champion"
    """The earlier data: `champion` (the data of the version that `promote.alias` names; default), `MODEL@ALIAS`,
    `datasets/…` or `contracts/…` in the store, or the path of a profile (a `.json` file)."""
    fail_on: Literal["critical", "warning", "never"] = "never"
    """The mildest change that rejects the data: `warning` (a column moved), `critical` (it moved far) or `never`
    (default)."""
    columns: list[str] = Field(default_factory=list)
    """Columns to compare; default: all."""
    ignore: list[str] = Field(default_factory=list)
    """Columns that are not compared; default: none."""
    # A run may have it with `fail_on: never`: the run that the automation starts accepts the data.
    retrain: bool = False
    """Whether `trainwright deploy` makes an automation that retrains on data that drift rejected; default: false."""


class QuarantineSpec(Section):
    """Rows that break the contract are set aside instead of rejecting all of the data."""

    max_share: float = Field(default=0.01, ge=0, le=1)
    """The largest share of the rows that may be set aside, between 0 and 1; default 0.01. With more, the data is
    rejected."""


class SuiteSpec(Section):
    """What must be true of other rows than the raw data's; none of them is set aside."""

    suite: str | dict[str, object]
    """A Great Expectations suite, as in `contract.suite`."""
    fail_on: Literal["critical", "warning", "info"] = "critical"
    """The mildest severity that rejects the rows; default `critical`."""


class ContractSpec(Section):
    """The contract: what must be true of the data before it is used."""

    suite: str | dict[str, object]
    """A Great Expectations suite: the path of a JSON file, or the suite inline."""
    fail_on: Literal["critical", "warning", "info"] = "critical"
    """The mildest severity that rejects the data; default `critical`. Milder failures are reported."""
    parameters: dict[str, object] = Field(default_factory=dict, exclude_if=lambda values: not values)
    """Values for the suite's parameters: `{low: 0}` for each `{"$PARAMETER": "low"}` in it; default: none. The
    suites of evaluation sets, of `features` and of `predictions` get them, too."""
    runner: Runner = Field(default="local", exclude_if=lambda runner: runner == "local")
    """Where the raw files are measured: `local` (this machine) or a Dask cluster; default local. Never changes the
    report."""
    drift: DriftSpec | None = Field(default=None, exclude_if=lambda drift: drift is None)
    """The comparison with earlier data; default: none."""
    arrival: ArrivalSpec | None = Field(default=None, exclude_if=lambda arrival: arrival is None)
    """Whether the data came, in time and as much as before; default: not judged."""
    quarantine: QuarantineSpec | None = Field(default=None, exclude_if=lambda quarantine: quarantine is None)
    """Set aside the rows that break an expectation about rows, and judge the others; default: reject the data."""
    contamination: ContaminationSpec | None = Field(default=None, exclude_if=lambda one: one is None)
    """Whether rows of one split may also be in another; default: not checked."""
    features: SuiteSpec | None = Field(default=None, exclude_if=lambda features: features is None)
    """What must be true of the rows in the shards, after `shards.transform`; checked by shard; default nothing."""
    predictions: SuiteSpec | None = Field(default=None, exclude_if=lambda predictions: predictions is None)
    """What must be true of the predictions of a candidate, on each evaluation set; checked by evaluate; default
    nothing."""
