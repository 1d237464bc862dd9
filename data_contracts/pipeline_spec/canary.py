"""`promote.canary`: a candidate first stands beside the champion, until fresh rows show which one is better."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from data_contracts.pipeline_spec.arrival import up_to_a_year
from data_contracts.pipeline_spec.base import FieldError, Section

_MOST_ROWS = 10**12


class CanarySpec(Section):
    """How long a candidate stands beside the champion, and what fresh rows must show of it."""

    within: Annotated[str, AfterValidator(up_to_a_year)]
    """The longest time that a candidate may stand, such as `14d` or `36h`; after that it is withdrawn."""
    metric: str
    """The metric that decides: one of `evaluate` with a value for each row, or `<set>/<metric>`."""
    min_gain: float | None = Field(default=None, exclude_if=lambda one: one is None)
    """The gain over the champion that must be shown, in the metric's `mode` direction; default 0, without `margin`."""
    margin: float | None = Field(default=None, ge=0, exclude_if=lambda one: one is None)
    """Instead: the largest loss against the champion that is accepted; a larger one must be ruled out."""
    confidence: float = Field(default=0.95, gt=0.5, le=0.9999)
    """1 minus the accepted probability that a worse candidate is ever promoted, however often it is asked; default
    0.95."""
    min_rows: int = Field(default=1000, ge=1, le=_MOST_ROWS)
    """How many fresh rows must be scored before anything is decided; default 1000."""

    @property
    def bound(self) -> float:
        """The gain that must be shown; negative with `margin`."""
        return -self.margin if self.margin is not None else self.min_gain or 0.0

    @field_validator("min_gain", "margin")
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and not abs(value) < 1e60:
            raise ValueError("must be a finite number")
        return value

    @model_validator(mode="before")
    @classmethod
    def _has_a_window(cls, value: Any) -> Any:
        if isinstance(value, dict) and "within" not in value:
            raise FieldError("within", "is missing: a canary needs a window; give one, such as within: 14d")
        return value

    @model_validator(mode="after")
    def _one_bound(self) -> CanarySpec:
        if self.min_gain is not None and self.margin is not None:
            raise FieldError("margin", "does not go with min_gain; give one of them")
        return self
