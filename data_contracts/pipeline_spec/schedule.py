"""The section `schedule`: how runs that nobody starts by hand, from a schedule or an event, go together."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from data_contracts.pipeline_spec.arrival import length_of
from data_contracts.pipeline_spec.base import Section

Overlap = Literal["skip", "queue", "cancel_old"]
_WEEK = timedelta(weeks=1)


def _up_to_a_week(text: str) -> str:
    if not timedelta(0) < length_of(text) <= _WEEK:
        raise ValueError(f"{text!r} is not between 1m and 1w")
    return text


class SensorSpec(Section):
    """When data that arrives starts a run. The deployment `sensor/NAME` looks every five minutes."""

    settle_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds for which all new files must stand still: the same files, sizes and times in two looks; default 30."""
    done_file: str | None = None
    """A file's name, such as `_SUCCESS`: new files count only once their folder has this file; default: none."""

    @field_validator("done_file")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or any(sign in value for sign in "/\\*?[") or value in (".", "..")):
            raise ValueError(f"{value!r} is not the name of a file; write one such as _SUCCESS")
        return value


class ScheduleSpec(Section):
    """How runs that a schedule or an event starts go together; `trainwright deploy --cron` sets the times."""

    overlap: Overlap | None = None
    """What such a run does while an earlier run of the pipeline is unfinished: `skip` (it ends as Skipped), `queue`
    (it waits) or `cancel_old` (the earlier run is cancelled first, unless a person or CI started it); default: runs
    may overlap."""
    within: Annotated[str, AfterValidator(_up_to_a_week)] | None = Field(
        default=None, exclude_if=lambda within: within is None
    )
    """How long after its time such a run may start, such as `6h`: it starts at the hour of the lowest price, else of
    the lowest carbon intensity, that the price book's `hours` have in that span. At most a week; default: at once."""
    sensor: SensorSpec | None = Field(default=None, exclude_if=lambda sensor: sensor is None)
    """Starts a run when files of `data.source` are new or changed; default: no sensor."""
