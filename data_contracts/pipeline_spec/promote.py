"""`promote`: the gates that a checkpoint must meet to replace the champion, and the alias that then moves."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from data_contracts.canonical import Name
from data_contracts.pipeline_spec.base import Section


class GateSpec(Section):
    """One condition that a checkpoint must meet to be promoted."""

    metric: str
    """A metric of `evaluate`, or `<set>/<metric>`."""
    min: float | None = None
    """Minimum value."""
    max: float | None = None
    """Maximum value."""
    min_gain: float | None = None
    """Minimum gain over the champion on the same rows, in the metric's `mode` direction; may be negative."""

    @model_validator(mode="after")
    def _one(self) -> GateSpec:
        if [self.min, self.max, self.min_gain].count(None) != 2:
            raise ValueError("give exactly one of min, max and min_gain")
        return self


class PromoteSpec(Section):
    """When a checkpoint becomes the champion."""

    model: Name | None = None
    """Name of the model in the registry; default: the pipeline's name."""
    alias: Name = "champion"
    """The alias that moves to a promoted version; default `champion`."""
    gates: list[GateSpec] = Field(default_factory=list)
    """The gates, all of which must be met; default none, so every checkpoint is promoted."""

    @field_validator("alias")
    @classmethod
    def _free(cls, alias: str) -> str:
        if alias == "history":
            raise ValueError("history cannot be an alias: the store keeps the receipts under that name; choose another")
        return alias
