"""`evaluate`: the metrics by which a checkpoint is scored, and the sets of rows that it is scored on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name
from data_contracts.pipeline_spec.base import DottedPath, FieldError, Section
from data_contracts.pipeline_spec.contract import SuiteSpec
from data_contracts.pipeline_spec.data import Sources
from data_contracts.pipeline_spec.placement import Spread
from data_contracts.pipeline_spec.slices import SliceSpec

# What does not decide the scores: where the work is done, and how they are compared.
_UNSCORED = {"launcher", "pool", "nodes", "devices", "strategy", "unit", "slices"}


def _position(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


# A position may be written as a number; it is kept as text, like a key.
Entry = Annotated[str, BeforeValidator(_position, json_schema_input_type=str | int)]


class MetricSpec(Section):
    """A metric: a torchmetrics class over `predict_step`, or a name that `test_step` logs."""

    class_path: DottedPath | None = None
    """A torchmetrics class, such as `torchmetrics.classification.MulticlassAccuracy`."""
    init_args: dict[str, Any] = Field(default_factory=dict)
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
        if (self.class_path is None) == (self.logged is None):
            raise ValueError("give either class_path or logged, and not both")
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
        if (self.split is None) == (self.source is None):
            raise ValueError("give either split or source, and not both")
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
