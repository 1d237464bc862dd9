"""The section `schedule`: how runs that nobody starts by hand, from a schedule or an event, go together."""

from __future__ import annotations

from typing import Literal

from data_contracts.pipeline_spec.base import Section

Overlap = Literal["skip", "queue", "cancel_old"]


class ScheduleSpec(Section):
    """How runs that a schedule or an event starts go together; `trainwright deploy --cron` sets the times."""

    overlap: Overlap | None = None
    """What such a run does while an earlier run of the pipeline is unfinished: `skip` (it ends as Skipped), `queue`
    (it waits) or `cancel_old` (the earlier run is cancelled first, unless a person or CI started it); default: runs
    may overlap."""
