"""`evaluate`: the metrics by which a checkpoint is scored, and the sets of rows that it is scored on.

`evaluate.slices` are parts of the rows that are also judged on their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name
from data_contracts.expressions import Condition, ConditionError, read_condition
from data_contracts.pipeline_spec.base import DottedPath, FieldError, Section, Spread, check_one_of
from data_contracts.pipeline_spec.contract import SuiteSpec
from data_contracts.pipeline_spec.data import Sources

Bound = int | float | str
Value = bool | int | float | str
# What does not decide the scores: where the work is done, and how they are compared.
_UNSCORED = {"launcher", "pool", "queue", "job_variables", "nodes", "devices", "strategy", "unit", "slices"}


class SliceSpec(Section):
    """Rows by a column's range or values, or by a condition; a missing value is in no range and among no values."""

    column: str | None = None
    """A column kept in the dataset; give it with `min` or `max`, or with `values`."""
    min: Bound | None = None
    """With `column`: the least value, inclusive: a number, or an ISO date or time in quotes; default no limit."""
    max: Bound | None = None
    """With `column`: the value above all, exclusive; default no limit."""
    values: list[Value] | None = Field(default=None, min_length=1)
    """With `column`: the values of the rows, such as [DE, AT]."""
    where: str | None = None
    """Instead of `column`: a condition on columns, such as `age > 60 and country == 'DE'`."""

    @model_validator(mode="after")
    def _one(self) -> SliceSpec:
        ranged = self.min is not None or self.max is not None
        check_one_of(self, "column", "where")
        if self.where is not None and (ranged or self.values is not None):
            raise FieldError("where", "excludes min, max and values; write them as a part of the condition")
        if self.column is not None and ranged == (self.values is not None):
            raise FieldError("column", "needs min or max, or else values")
        alike = isinstance(self.min, str) == isinstance(self.max, str)
        if self.min is not None and self.max is not None and alike and not self.min < self.max:  # type: ignore[operator]
            raise FieldError("max", f"must be above min ({self.min}); max itself is not in the slice")
        try:
            self.condition  # noqa: B018
        except ConditionError as error:
            raise FieldError("where" if self.where is not None else "column", str(error)) from None
        return self

    @property
    def condition(self) -> Condition:
        """The condition that its rows meet."""
        if self.where is not None:
            return read_condition(self.where)
        column = f"col({self.column!r})"
        if self.values is not None:
            return read_condition(f"{column} in {self.values!r}")
        bounds = [f"{column} >= {self.min!r}"] if self.min is not None else []
        return read_condition(" and ".join(bounds + ([f"{column} < {self.max!r}"] if self.max is not None else [])))


def _position(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# A position may be written as a number; it is kept as text, like a key.
Entry = Annotated[str, BeforeValidator(_position, json_schema_input_type=str | int)]


class MetricSpec(Section):
    """A metric: a torchmetrics class over `predict_step`, or a name that `test_step` logs."""

    class_path: DottedPath | None = None
    """A torchmetrics class, such as `torchmetrics.classification.MulticlassAccuracy`."""
    init_args: dict[str, object] = Field(default_factory=dict)
    """Arguments of the class; default none."""
    target: Entry | None = None
    """With `class_path`: the batch's entry that holds the truth: a key, a column of `train.batch`, or a position."""
    prediction: Entry | None = None
    """With `class_path`: the key of the prediction, if `predict_step` returns a dictionary."""
    scores: Literal["logits", "probabilities"] | None = Field(default=None, exclude_if=lambda scores: scores is None)
    """With a class that tells logits from probabilities, such as `BinaryAUROC`: what `predict_step` returns; default:
    logits if a score of any row is below 0 or above 1."""
    logged: str | None = None
    """Instead of `class_path`: the name of a value that `test_step` logs."""
    mode: Literal["max", "min"]
    """Whether larger or smaller is better."""

    @model_validator(mode="after")
    def _one(self) -> MetricSpec:
        check_one_of(self, "class_path", "logged")
        if self.class_path is not None and self.target is None:
            raise FieldError("target", "is missing; name the entry of the batch that holds the truth (key or position)")
        if self.scores is not None and self.logged is not None:
            raise FieldError("scores", "is for class_path; what test_step logs is taken as it is")
        return self


class SetSpec(Section):
    """A further set to score: a split of the dataset, or other raw files."""

    split: str | None = None
    """A split of the dataset, such as `val`."""
    source: Sources | None = None
    """Or raw files, which are sharded with the same settings; all rows are scored."""
    contract: SuiteSpec | Literal["same", "none"] = Field(default="same", exclude_if=lambda one: one == "same")
    """With `source`: what must be true of its rows: the `same` suite and `fail_on` as in the section `contract`, its
    own suite, or `none`; default same. No row is set aside."""
    perturb: DottedPath | None = Field(default=None, exclude_if=lambda path: path is None)
    """A function of yours that gets a batch of this set, after `train.transform`, and returns it changed, such as with
    noise; default none. The scores then show how robust the model is."""
    sealed: bool = Field(default=False, exclude_if=lambda sealed: not sealed)
    """Whether its scores are shown to nobody: only gates with `confidence` use them, and tell their verdict alone;
    default false."""

    @model_validator(mode="after")
    def _one(self) -> SetSpec:
        check_one_of(self, "split", "source")
        if self.split is not None and self.contract != "same":
            raise FieldError("contract", "is for a set with its own source; the contract has seen this split's rows")
        return self


class EvaluateSpec(Spread):
    """How a checkpoint is scored; every row counts once."""

    metrics: dict[str, MetricSpec] = Field(min_length=1)
    """Metrics by name."""
    split: str = "test"
    """The split on which metrics without a set's name are computed; default test."""
    sets: dict[Name, SetSpec] = Field(default_factory=dict)
    """Further sets by name; their metrics are named `<set>/<metric>`; default none."""
    batch_size: int = Field(default=512, ge=1)
    """Rows per batch; default 512. It affects the result of logged metrics only."""
    unit: str | None = Field(default=None, exclude_if=lambda unit: unit is None)
    """A column kept in the dataset, such as `customer`: rows with the same value are not independent, so gates with
    `confidence` compare whole units; default: each row is independent. It never changes a score."""
    slices: dict[Name, SliceSpec] = Field(default_factory=dict, exclude_if=lambda slices: not slices)
    """Parts of the rows, by name, that a gate may be about (`slice`, `max_gap`); default none. They never change a
    score."""

    @property
    def result(self) -> dict[str, Any]:
        """The settings that decide the scores, as JSON."""
        written = self.model_dump(mode="json", exclude=_UNSCORED)
        for one in written["sets"].values():
            one.pop("contract", None)
        return written

    @field_validator("metrics")
    @classmethod
    def _no_slash(cls, metrics: dict[str, MetricSpec]) -> dict[str, MetricSpec]:
        for name in metrics:
            if "/" in name or not name:
                raise FieldError(name, "a metric's name must be text without '/', which stands for <set>/<metric>")
        return metrics
