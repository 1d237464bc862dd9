"""`promote`: the gates that a checkpoint must meet to replace the champion, and the alias that then moves.

The names in gates are checked here: their metrics, sets and slices.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from data_contracts.canonical import Name
from data_contracts.expressions import check
from data_contracts.pipeline_spec.base import FieldError, Section, Shorthand, check_one_of, each_once, is_none
from data_contracts.pipeline_spec.contract import up_to_a_year
from data_contracts.pipeline_spec.evaluate import EvaluateSpec

_MOST_ROWS = 10**12
# What is measured of a model itself, and can be named like a metric.
MEASURES = ("latency_ms", "size_bytes")
_MOST_CANDIDATES = 1_000_000
_KEY_NAME = re.compile(r"file:[^\x00-\x1f]+|env:[A-Za-z_]\w*")
_APPROVER = re.compile(r"file:[^\x00-\x1f]+|[0-9a-f]{64}")
_ASKED = ("min", "max", "min_gain", "margin", "max_gap")
_APPROVAL_WITHIN = "7d"


class CanarySpec(Section):
    """What specs of versions before 2026-11-29 asked of a canary; a run refuses them."""

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


class GateSpec(Section):
    """One condition that a checkpoint must meet to be promoted."""

    metric: str | None = None
    """A metric of `evaluate`, `<set>/<metric>`, `latency_ms` or `size_bytes`."""
    expression: str | None = Field(default=None, exclude_if=is_none)
    """Instead of `metric`, with `min` or `max`: a sum, difference, product or quotient of metrics, such as `accuracy -
    0.1 * loss`."""
    min: float | None = None
    """Minimum value."""
    max: float | None = None
    """Maximum value."""
    min_gain: float | None = None
    """Minimum gain over the champion on the same rows, in the metric's `mode` direction; may be negative."""
    margin: float | None = Field(default=None, ge=0, exclude_if=is_none)
    """With `confidence`: the largest loss against the champion on the same rows that is accepted."""
    max_gap: float | None = Field(default=None, ge=0, exclude_if=is_none)
    """The largest accepted difference between the slices with the highest and the lowest value."""
    confidence: float | None = Field(default=None, gt=0.5, le=0.9999, exclude_if=is_none)
    """1 minus the accepted probability that the gate is ever met falsely while its rows are in use, such as 0.95: the
    rows must show what is asked for; not with `max_gap`; default: the values themselves are compared."""
    slice: Name | None = Field(default=None, exclude_if=is_none)
    """A slice of `evaluate.slices`: only its rows count; default all rows."""

    @property
    def name(self) -> str:
        """The metric or the expression."""
        return self.metric if self.metric is not None else str(self.expression)

    @property
    def compares(self) -> bool:
        """Whether the gate is about the champion, too."""
        return self.min_gain is not None or self.margin is not None

    @property
    def threshold(self) -> float:
        """The value, gain, loss or gap that is asked for."""
        return next(value for name in _ASKED if (value := getattr(self, name)) is not None)

    @model_validator(mode="after")
    def _one(self) -> GateSpec:
        check_one_of(self, "metric", "expression")
        if [getattr(self, name) for name in _ASKED].count(None) != len(_ASKED) - 1:
            raise ValueError("give exactly one of min, max, min_gain, margin and max_gap")
        if self.margin is not None and self.confidence is None:
            raise FieldError("margin", "needs confidence; give one, such as confidence: 0.95, or use min_gain")
        if self.confidence is not None and self.max_gap is not None:
            raise FieldError("confidence", "does not go with max_gap; use it with min, max, min_gain or margin")
        given = [self.confidence, self.slice, self.max_gap]
        if self.expression is not None and given.count(None) != len(given):
            raise FieldError("expression", "can have min or max, without confidence, slice and max_gap")
        if self.expression is not None and self.compares:
            raise FieldError("min_gain", "needs a metric: whether a larger expression is better is not known")
        if self.max_gap is not None and self.slice is not None:
            raise FieldError("slice", "does not go with max_gap, which compares all slices")
        return self


class ExportGate(Shorthand):
    """A form in which a candidate must run without Trainwright; a plain string is short for `to`."""

    short_for: ClassVar[str] = "to"

    to: Literal["torch", "onnx"]
    """`torch` (a torch.export program) or `onnx`."""
    atol: float | None = Field(default=None, ge=0)
    """How far a floating point output may differ from the checkpoint's, besides `rtol`; default: by its type, or 0 if
    `rtol` is given."""
    rtol: float | None = Field(default=None, ge=0)
    """How far it may differ as a share of its value; default: by its type, or 0 if `atol` is given."""


class PromoteSpec(Section):
    """When a checkpoint becomes the champion."""

    model: Name | None = None
    """Name of the model in the registry; default: the pipeline's name."""
    alias: Name = "champion"
    """The alias that moves to a promoted version; default `champion`."""
    gates: list[GateSpec] = Field(default_factory=list)
    """The gates, all of which must be met; default none, so every checkpoint is promoted."""
    export: list[ExportGate] = Field(default_factory=list, exclude_if=lambda forms: not forms)
    """Forms to which the candidate must be exported with outputs equal to its own, before the alias moves; default
    none."""
    when_insufficient: Literal["keep", "promote"] = Field(default="keep", exclude_if=lambda one: one == "keep")
    """If the rows do not suffice for a gate with `confidence`: `keep` the champion or `promote`; default keep."""
    candidates: int = Field(default=1, ge=1, le=_MOST_CANDIDATES, exclude_if=lambda one: one == 1)
    """How many candidates were compared on the same rows before this one was chosen, with it; default 1."""

    canary: CanarySpec | None = Field(default=None, exclude_if=is_none)
    """Refused since 2026-11-29: dropped; a gate with `confidence` about a set of the newest rows decides on fresh
    rows."""
    approval: Literal["none", "manual"] = Field(default="none", exclude_if=lambda one: one == "none")
    """With `manual`, a person must approve each promotion once all gates are met; default none."""
    approval_within: Annotated[str, AfterValidator(up_to_a_year)] = Field(
        default=_APPROVAL_WITHIN, exclude_if=lambda one: one == _APPROVAL_WITHIN
    )
    """How long a person may take to answer, such as `36h` or `7d`; after that it counts as refused; default 7d."""
    approvers: list[str] = Field(default_factory=list, exclude_if=lambda one: not one)
    """The public keys whose signed answers count, each as `file:PATH` or a key's id; with any, each promotion needs an
    approval; default: those of the alias's protection."""
    require: Annotated[list[Literal["signed", "contract", "clean_commit", "approved"]], AfterValidator(each_once)] = (
        Field(default_factory=list, exclude_if=lambda one: not one)
    )
    """What must hold beside the gates: the receipt is `signed`, the rows met a `contract` with a critical expectation,
    the training came from a `clean_commit`, a person `approved` the promotion; default none."""
    sign: str | None = Field(default=None, exclude_if=is_none)
    """The private key that signs the receipt and the model's files, named as `file:PATH` or `env:NAME`; default:
    `TRAINWRIGHT_SIGNING_KEY` in the environment, if it is set."""

    @field_validator("sign")
    @classmethod
    def _named(cls, sign: str | None) -> str | None:
        if sign is not None and not _KEY_NAME.fullmatch(sign):
            raise ValueError("must name a key as file:PATH or env:NAME, not hold one")
        return sign

    @field_validator("approvers")
    @classmethod
    def _public(cls, approvers: list[str]) -> list[str]:
        if wrong := next((one for one in approvers if not _APPROVER.fullmatch(one)), None):
            raise ValueError(f"{wrong[:80]!r} is neither file:PATH of a public key nor a key's id of 64 characters")
        return approvers

    @field_validator("export")
    @classmethod
    def _each_once(cls, forms: list[ExportGate]) -> list[ExportGate]:
        names = [one.to for one in forms]
        if len(set(names)) < len(names):
            raise ValueError("names a form twice; name each once")
        return forms

    @field_validator("alias")
    @classmethod
    def _free(cls, alias: str) -> str:
        if alias == "history":
            raise ValueError("history cannot be an alias: the store keeps the receipts under that name; choose another")
        return alias


def check_gates(gates: Sequence[GateSpec], evaluate: EvaluateSpec) -> None:
    """FieldError if a gate names an unknown metric, set or slice (the nearest is named), or one that it excludes."""
    open_metrics = [*evaluate.metrics, *MEASURES]
    for name, one in evaluate.sets.items():
        open_metrics += [f"{name}/{metric}" for metric in evaluate.metrics if not one.sealed]
    for index, gate in enumerate(gates):
        at = ("promote", "gates", index)
        if gate.metric is not None and gate.metric not in MEASURES:
            _check_metric(gate.metric, evaluate, (*at, "metric"))
            of_set = gate.metric.rpartition("/")[0]
            if of_set and evaluate.sets[of_set].sealed and gate.confidence is None:
                sentence = f"{of_set!r} is a sealed set, and only a gate with confidence may be about it; give one"
                raise FieldError((*at, "metric"), sentence)
        if gate.metric in MEASURES and (gate.confidence is not None or gate.slice or gate.max_gap is not None):
            sentence = (
                f"{gate.metric} is measured of the whole model; use min, max or min_gain, without confidence and slice"
            )
            raise FieldError((*at, "metric"), sentence)
        if gate.expression is not None:
            hidden = [name for name, one in evaluate.sets.items() if one.sealed and f"{name}/" in gate.expression]
            if hidden:
                sentence = f"{hidden[0]!r} is a sealed set, and only a gate with confidence may be about it"
                raise FieldError((*at, "expression"), sentence)
            try:
                check(gate.expression, open_metrics)
            except ValueError as error:
                raise FieldError((*at, "expression"), str(error)) from None
        if gate.slice is not None and gate.slice not in evaluate.slices:
            sentence = f"{gate.slice!r} is not a slice of evaluate.slices; {_known(evaluate.slices)}"
            raise FieldError((*at, "slice"), f"{sentence}{_nearest(gate.slice, evaluate.slices)}")
        if gate.max_gap is not None and len(evaluate.slices) < 2:
            sentence = f"compares slices, and evaluate.slices has {len(evaluate.slices) or 'none'}; give at least two"
            raise FieldError((*at, "max_gap"), sentence)


def _check_metric(name: str, evaluate: EvaluateSpec, field: tuple[str | int, ...]) -> None:
    of_set, _, metric = name.rpartition("/")
    if metric not in evaluate.metrics:
        near = _nearest(metric, [*evaluate.metrics, *MEASURES])
        raise FieldError(field, f"{metric!r} is not a metric of evaluate; it has {listed(evaluate.metrics)}{near}")
    if of_set and of_set not in evaluate.sets:
        near = _nearest(of_set, evaluate.sets)
        raise FieldError(field, f"{of_set!r} is not a set of evaluate.sets; {_known(evaluate.sets)}{near}")


def _known(names: Collection[str]) -> str:
    return f"it has {listed(names)}" if names else "it has none"


def _nearest(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def listed(names: Iterable[str]) -> str:
    """Names with commas."""
    return ", ".join(names)
