"""Service level objectives: what people write about how often the pipeline succeeds, and in which time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from data_contracts.canonical import Name
from data_contracts.pipeline_spec.base import FieldError, Section
from data_contracts.pipeline_spec.contract import length_of, up_to_a_year
from data_contracts.run_report import Trigger

Measure = Literal["success", "time", "checkpoints", "resumes", "goodput"]


class Objective(Section):
    """What is measured of which runs, and the share of it that must be good in 28 days."""

    measure: Measure
    """`success`: runs that did their work; `time`: runs that were done within `within`; `checkpoints`: checkpoints that
    were committed and not quarantined; `resumes`: trainings that resumed and went on; `goodput`: node-seconds that were
    work."""
    target: Annotated[float, Field(gt=0, lt=1)]
    """The share that must be good, such as 0.95; the rest is the error budget."""
    within: Annotated[str, AfterValidator(up_to_a_year)] | None = None
    """For `time`: how long a run may take, such as 8h; the time that it waits for a person is not counted."""
    where: dict[str, str] = Field(default_factory=dict)
    """Tags that a run must have, with these values; default: all runs."""
    pipeline: str | None = None
    """The pipeline whose runs it is for; default: every pipeline's."""
    triggers: list[Trigger] = Field(default_factory=list)
    """What started the runs that it is for: cli, schedule, ci, ui or automation; default: anything."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Objective:
        if self.measure == "time" and self.within is None:
            raise FieldError("within", "an objective about time needs the time that a run may take, such as 8h")
        if self.measure != "time" and self.within is not None:
            raise FieldError("within", f"only an objective about time has one, and this is about {self.measure}")
        return self

    @property
    def within_s(self) -> float:
        """The time that a run may take, in seconds; 0 if this is not about time."""
        return 0.0 if self.within is None else length_of(self.within).total_seconds()

    def is_for(self, pipeline: str, tags: Mapping[str, str], trigger: str) -> bool:
        """Whether a run counts."""
        named = self.pipeline in (None, pipeline) and (not self.triggers or trigger in self.triggers)
        return named and all(tags.get(name) == value for name, value in self.where.items())


class Objectives(Section):
    """A file of objectives."""

    called: ClassVar[str] = "a file of objectives"
    shown_in: ClassVar[str] = "docs/slo.md"

    version: Literal[1]
    """Version of this format: 1."""
    objectives: Annotated[dict[Name, Objective], Field(min_length=1)]
    """The objectives, by name."""
