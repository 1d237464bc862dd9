"""`search`: which fields of the spec are tried with which values, how many trials there are, and what they may cost.

What is searched for is what `train.select` selects: the best value of a metric that the module logs on validation rows.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from data_contracts.canonical import Name
from data_contracts.pipeline_spec.base import Currency, FieldError, Section, is_none

MOST_TRIALS = 10_000
Value = bool | int | float | str


def _field(name: str) -> str:
    if len(parts := name.split(".")) < 2 or not all(parts):
        raise ValueError(f"{name!r} is not a field of the spec; write it as in --set, such as train.global_batch_size")
    return name


FieldName = Annotated[str, AfterValidator(_field)]


def _divides(step: int | float, distance: int | float) -> bool:
    """Whether a distance is a whole number of steps, as far as floats can say."""
    steps = distance / step
    return abs(steps - round(steps)) < 1e-9 * max(1.0, steps)


class ParameterSpec(Section):
    """The values that are tried for one field: `choices`, or all from `min` to `max`."""

    choices: list[Value] | None = Field(default=None, min_length=1)
    """Values without an order."""
    min: int | float | None = None
    """Smallest value; if `min`, `max` and `step` are whole numbers, so are all values."""
    max: int | float | None = None
    """Largest value."""
    step: int | float | None = Field(default=None, gt=0)
    """Distance between values; default: 1 for whole numbers, any value for others."""
    log: bool = False
    """Whether values are spread by their order of magnitude; default false."""
    when: dict[FieldName, Value] = Field(default_factory=dict)
    """Other fields of the space, with the value that each must have; otherwise this field stays as the spec has it.
    Default: always."""

    @property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return all(isinstance(one, int) for one in (self.min, self.max, 1 if self.step is None else self.step))

    @property
    def bounds(self) -> tuple[int | float, int | float]:
        """Smallest and largest value, where there are no choices."""
        assert self.min is not None
        assert self.max is not None
        return self.min, self.max

    def has(self, value: Value) -> bool:
        """Whether a value is one of these."""
        if self.choices is not None:
            return any(type(one) is type(value) and one == value for one in self.choices)
        low, high = self.bounds
        if isinstance(value, bool | str) or not low <= value <= high or (self.is_whole and not isinstance(value, int)):
            return False
        step = self.step or (1 if self.is_whole else None)
        return step is None or _divides(step, value - low)

    @model_validator(mode="after")
    def _one_kind(self) -> ParameterSpec:
        if (self.choices is None) == (self.min is None or self.max is None):
            raise ValueError("give either choices, or min and max")
        if self.choices is not None:
            if (self.min, self.max, self.step, self.log) != (None, None, None, False):
                raise FieldError("choices", "have no min, max, step and log; leave these out")
            if len({(type(one), one) for one in self.choices}) < len(self.choices):
                raise FieldError("choices", "names a value twice; name each once")
            return self
        low, high = self.bounds
        if low >= high:
            raise FieldError("max", f"must be more than min ({low:g}), got {high:g}")
        if self.log and low <= 0:
            raise FieldError("min", f"must be more than 0 with log, got {low:g}")
        if self.log and self.step is not None:
            raise FieldError("step", "does not go with log; leave one of them out")
        if self.step is not None and not _divides(self.step, high - low):
            raise FieldError("step", f"{self.step:g} does not divide the range from {low:g} to {high:g}")
        return self


class PruneSpec(Section):
    """When a trial that is not promising ends early: it is compared with the others at certain validations (rungs)."""

    method: Literal["asha", "hyperband"] = "asha"
    """`asha` (asynchronous successive halving; default) or `hyperband` (several of them, some of which begin later)."""
    first: int = Field(default=1, ge=1, le=10**6)
    """The validation after which trials are compared first, such as 2 for the second; default 1."""
    factor: int = Field(default=3, ge=2, le=100)
    """The best 1/`factor` of trials go on at each rung, and the next rung is after `factor` times as many validations;
    default 3."""


class SearchBudget(Section):
    """What a search may use in all; its trials keep to it as runs keep to budgets (docs/budgets.md)."""

    trials: int = Field(ge=1, le=MOST_TRIALS)
    """How many trials there are at most."""
    amount: float | None = Field(default=None, gt=0)
    """The most that the trials may cost; needs `currency`. Default: no limit."""
    currency: Currency | None = None
    """ISO 4217 code of `amount`, such as USD."""
    hours: float | None = Field(default=None, gt=0)
    """The most hours of nodes that the trials may take; default: no limit."""

    @model_validator(mode="after")
    def _has_currency(self) -> SearchBudget:
        if (self.amount is None) != (self.currency is None):
            raise FieldError("currency", "an amount needs its currency, such as USD, and nothing else has one")
        return self


class SearchSpec(Section):
    """A search for better values of some fields: `trainwright search` trains with many, and promotes the best."""

    space: dict[FieldName, ParameterSpec] = Field(min_length=1)
    """Field of the spec, written as in `--set` → the values that are tried."""
    budget: SearchBudget
    """How many trials there are, and what they may use."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How values are chosen: `tpe` (from the trials so far; default), `random` or `grid` (each combination once)."""
    prune: PruneSpec | None = Field(default=None, exclude_if=is_none)
    """When trials end early; default: never."""
    parallel: int = Field(default=1, ge=1, le=1000)
    """How many trials run at the same time; default 1."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the sampler; default 0."""
    warm_start: list[Name] = Field(default_factory=list)
    """Names of earlier searches of the same store whose trials the sampler knows from the start; default none."""

    @model_validator(mode="after")
    def _fits(self) -> SearchSpec:
        for name, parameter in self.space.items():
            for other, value in parameter.when.items():
                if other == name or other not in self.space:
                    raise FieldError(("space", name, "when", other), "is not another field of the space")
                if self.space[other].when:
                    raise FieldError(("space", name, "when", other), "has a condition itself; name one that has none")
                if self.space[other].choices is None and not self.space[other].is_whole:
                    raise FieldError(("space", name, "when", other), "has neither choices nor whole numbers")
                if not self.space[other].has(value):
                    raise FieldError(("space", name, "when", other), f"{value!r} is not among its values")
            if name.split(".")[:2] == ["train", "select"]:
                raise FieldError(("space", name), "says what is searched for, so it must be the same for all trials")
            if self.sampler == "grid" and parameter.log:
                raise FieldError(("space", name, "log"), "does not go with sampler: grid; give choices")
            if self.sampler == "grid" and parameter.when:
                raise FieldError(("space", name, "when"), "does not go with sampler: grid; use random or tpe")
            if self.sampler == "grid" and parameter.choices is None and not parameter.is_whole and not parameter.step:
                raise FieldError(("space", name, "step"), "is missing; sampler: grid needs the distance between values")
        return self
