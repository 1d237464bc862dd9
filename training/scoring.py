"""From batches to metrics: torchmetrics over predictions, row by row, or what `test_step` logs, batch by batch.

The outcomes are kept so that two models can be compared on the same rows. A metric that is no mean over rows (such as
an F1 score) is compared over fixed batches if it is a mean over those, else as one number over the whole set.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torchmetrics import Metric

from data_contracts.errors import UsageError
from data_contracts.handoffs import MetricValue
from data_contracts.spec import MetricSpec

ROW_LIMIT = 200_000
TOLERANCE = 1e-5


@dataclass
class Outcomes:
    """Outcomes of one metric on one set: value per unit, and how many rows each unit has."""

    unit: str
    values: list[float]
    rows: list[int]


@dataclass
class Scored:
    """One metric's value over a set, with its outcomes."""

    value: MetricValue
    outcomes: Outcomes


def metric_class(name: str, spec: MetricSpec) -> type[Metric]:
    """The torchmetrics class that a metric names.

    Raises:
        UsageError: there is no such class, or it is no torchmetrics Metric.
    """
    assert spec.class_path is not None
    module, _, attribute = spec.class_path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"evaluate.metrics.{name}.class_path: there is no {spec.class_path}.",
            remedy="Name a torchmetrics class, such as torchmetrics.classification.MulticlassAccuracy.",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Metric)):
        raise UsageError(f"evaluate.metrics.{name}.class_path: {spec.class_path} is no torchmetrics Metric.", remedy="")
    return found


class PredictionScore:
    """A torchmetrics metric over predictions, fed batch by batch."""

    def __init__(self, name: str, spec: MetricSpec) -> None:
        kind = metric_class(name, spec)
        try:
            self._whole, self._single = kind(**spec.init_args), kind(**spec.init_args)
        except (TypeError, ValueError) as error:
            raise UsageError(f"evaluate.metrics.{name}.init_args: {kind.__name__} refuses them: {error}.") from error
        self._name, self._mode = name, spec.mode
        self._rows: list[float] = []
        self._batches = Outcomes("batch", [], [])
        self._num_rows = 0

    def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        """Score one batch: `prediction` (B, …) against `target` (B, …)."""
        prediction, target = prediction.detach().cpu(), target.detach().cpu()
        if prediction.is_floating_point():
            prediction = prediction.float()
        size = len(target)
        try:
            self._whole.update(prediction, target)
            self._batches.values.append(self._alone(prediction, target))
            if self._num_rows + size <= ROW_LIMIT:
                self._rows += [self._alone(prediction[i : i + 1], target[i : i + 1]) for i in range(size)]
        except (ValueError, RuntimeError, TypeError) as error:
            raise UsageError(
                f"evaluate.metrics.{self._name}: it cannot score predictions of shape {tuple(prediction.shape)} "
                f"against targets of shape {tuple(target.shape)}: {error}.",
                remedy="Check target, prediction and init_args.",
            ) from error
        self._batches.rows.append(size)
        self._num_rows += size

    def result(self) -> Scored:
        """The metric over all rows, with the finest outcomes whose mean it is."""
        value = _number(self._name, self._whole.compute())
        rows = Outcomes("row", self._rows, [1] * len(self._rows))
        for outcomes in (rows, self._batches):
            if sum(outcomes.rows) == self._num_rows and _is_mean(outcomes, value):
                return _scored(value, self._mode, self._num_rows, outcomes)
        return _scored(value, self._mode, self._num_rows, Outcomes("dataset", [value], [self._num_rows]))

    def _alone(self, prediction: torch.Tensor, target: torch.Tensor) -> float:
        self._single.reset()
        self._single.update(prediction, target)
        return float(self._single.compute())


@dataclass
class LoggedScore:
    """What `test_step` logs under one name, captured at `self.log`, one outcome per fixed batch."""

    name: str
    spec: MetricSpec
    values: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    is_metric: bool = False

    def capture(self, value: Any) -> None:
        """Take what `self.log` was given in the current batch."""
        if isinstance(value, Metric):
            self.is_metric = True
            value = value._forward_cache
        if value is not None:
            self.values.append(float(value))

    def end_batch(self, size: int) -> None:
        """Note how many rows the batch had."""
        if len(self.values) == len(self.rows) + 1:
            self.rows.append(size)

    def result(self, logged: set[str], num_rows: int, final: Mapping[str, Any]) -> Scored:
        """The metric over the set; UsageError if nothing was logged under its name.

        Args:
            logged: all names that were logged.
            final: Lightning's values at the end, which a torchmetrics object that was logged itself is read from.
        """
        if not self.values and not self.is_metric:
            said = ", ".join(sorted(logged)) or "nothing"
            raise UsageError(
                f"evaluate.metrics.{self.name}.logged: test_step logs no {self.spec.logged}; it logs {said}.",
                remedy="Name one of these, or log it in test_step.",
            )
        whole = sum(self.rows) == num_rows
        outcomes = Outcomes("batch", self.values[: len(self.rows)], self.rows) if whole else None
        if self.is_metric:
            value = _number(self.name, final[self.spec.logged or ""])
            if outcomes is None or not _is_mean(outcomes, value):
                outcomes = Outcomes("dataset", [value], [num_rows])
        elif outcomes is None:  # logged once, at the end of the epoch
            value = _number(self.name, self.values[-1])
            outcomes = Outcomes("dataset", [value], [num_rows])
        else:
            value = _number(self.name, _mean(outcomes))
        return _scored(value, self.spec.mode, num_rows, outcomes)


def _scored(value: float, mode: str, rows: int, outcomes: Outcomes) -> Scored:
    return Scored(MetricValue(value=value, mode=mode, rows=rows, unit=outcomes.unit), outcomes)


def _is_mean(outcomes: Outcomes, value: float) -> bool:
    return math.isclose(_mean(outcomes), value, rel_tol=TOLERANCE, abs_tol=1e-9)


def _mean(outcomes: Outcomes) -> float:
    return math.fsum(v * n for v, n in zip(outcomes.values, outcomes.rows, strict=True)) / max(1, sum(outcomes.rows))


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise UsageError(
            f"evaluate.metrics.{name}: it gives {value.numel()} numbers, one is needed.",
            remedy="Choose an average in init_args.",
        )
    number = float(value)
    if not math.isfinite(number):
        raise UsageError(f"evaluate.metrics.{name}: its value is {number}.", remedy="A gate cannot decide on it.")
    return number
