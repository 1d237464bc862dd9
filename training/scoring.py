"""From batches to metrics: torchmetrics over predictions, row by row, or what `test_step` logs, batch by batch.

The outcomes are kept so that two models can be compared on the same rows. A metric that is no mean over rows (such as
an F1 score) is compared over fixed batches if it is a mean over those, else as one number over the whole set.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric

from data_contracts.errors import UsageError
from data_contracts.handoffs import MetricValue
from data_contracts.spec import MetricSpec
from training.user_code import borrowed, user_code

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


def metric_classes(metrics: Mapping[str, MetricSpec], project: Path, other: Path) -> dict[str, type[Metric]]:
    """The torchmetrics class of every metric that names one.

    Args:
        project: root of the code that the metrics are taken from.
        other: root of the code that the module is taken from, which may have modules of the same names.

    Raises:
        UsageError: there is no such class, or it is no torchmetrics Metric.
        UserCodeError: the file that defines it raises on import.
    """
    found = {}
    with borrowed(project, other):
        for name, spec in metrics.items():
            if spec.class_path is not None:
                with user_code(f"evaluate.metrics.{name}.class_path: importing {spec.class_path}", project.resolve()):
                    found[name] = _metric_class(name, spec)
    return found


def _metric_class(name: str, spec: MetricSpec) -> type[Metric]:
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

    def __init__(self, name: str, spec: MetricSpec, kind: type[Metric]) -> None:
        try:
            self._whole, self._single, twin = (kind(**spec.init_args) for _ in range(3))
        except (TypeError, ValueError) as error:
            raise UsageError(f"evaluate.metrics.{name}.init_args: {kind.__name__} refuses them: {error}.") from error
        self._name, self._mode = name, spec.mode
        # One that keeps all rows would keep them twice.
        keeps_rows = any(isinstance(state, list) for state in twin._defaults.values())
        self._exact = None if keeps_rows else twin.set_dtype(torch.float64)
        self._rows: Outcomes | None = Outcomes("row", [], [])
        self._batches: Outcomes | None = Outcomes("batch", [], [])
        self._num_rows = 0

    def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        """Score one batch: `prediction` (B, …) against `target` (B, …)."""
        prediction, target = prediction.detach().cpu(), target.detach().cpu()
        if prediction.is_floating_point():
            prediction = prediction.float()
        size = len(target)
        try:
            self._whole.update(prediction, target)
        except (ValueError, RuntimeError, TypeError) as error:
            raise UsageError(
                f"evaluate.metrics.{self._name}: it cannot score predictions of shape {tuple(prediction.shape)} "
                f"against targets of shape {tuple(target.shape)}: {error}.",
                remedy="Check target, prediction and init_args.",
            ) from error
        if self._exact is not None:
            try:
                self._exact.update(_double(prediction), _double(target))
            except Exception:  # it mixes its own single precision in
                self._exact = None
        self._num_rows += size
        self._batches = self._scored(self._batches, prediction, target, size)
        if self._num_rows > ROW_LIMIT:
            self._rows = None
        self._rows = self._scored(self._rows, prediction, target, 1)

    def result(self) -> Scored:
        """The metric over all rows, with the finest outcomes whose mean it is."""
        told = self._whole.compute()
        value = _number(self._name, told)
        if self._rows is not None and _is_mean(self._rows, value):
            return _scored(_mean(self._rows), self._mode, self._num_rows, self._rows)
        value = self._in_double(_shortest(value, told))
        outcomes = Outcomes("dataset", [value], [self._num_rows])
        if self._batches is not None and _is_mean(self._batches, value):
            outcomes = self._batches
        return _scored(value, self._mode, self._num_rows, outcomes)

    def _in_double(self, value: float) -> float:
        """The value in double precision where torchmetrics can have it."""
        if self._exact is not None:
            with contextlib.suppress(Exception):
                exact = float(self._exact.compute())
                if math.isclose(exact, value, rel_tol=TOLERANCE, abs_tol=1e-9):
                    return exact
        return value

    def _scored(
        self, outcomes: Outcomes | None, prediction: torch.Tensor, target: torch.Tensor, size: int
    ) -> Outcomes | None:
        """`outcomes` with those of a batch, taken `size` rows at a time; None once one cannot be scored by itself."""
        if outcomes is None:
            return None
        try:
            for at in range(0, len(target), size):
                outcomes.values.append(self._alone(prediction[at : at + size], target[at : at + size]))
                outcomes.rows.append(size)
        # Whatever a metric says of a single row (some need two): only the whole of the rows has to have a value.
        except Exception:
            return None
        return outcomes

    def _alone(self, prediction: torch.Tensor, target: torch.Tensor) -> float:
        self._single.reset()
        self._single.update(prediction, target)
        return float(self._single.compute())


@dataclass
class LoggedScore:
    """What `test_step` logs under one name, captured at `self.log`, one outcome per fixed batch if it logs one each."""

    name: str
    spec: MetricSpec
    outcomes: Outcomes = field(default_factory=lambda: Outcomes("batch", [], []))
    _batch: list[float] = field(default_factory=list)

    def capture(self, value: Any) -> None:
        """Take what `self.log` was given in the current batch."""
        if isinstance(value, Metric):
            value = value._forward_cache
        if value is not None:
            self._batch.append(float(value))

    def end_batch(self, size: int) -> None:
        """Note how many rows the batch had."""
        if len(self._batch) == 1:
            self.outcomes.values += self._batch
            self.outcomes.rows.append(size)
        self._batch.clear()

    def result(self, num_rows: int, final: Mapping[str, Any]) -> Scored:
        """The metric over the set, with the outcomes whose mean it is.

        Args:
            final: Lightning's values over the set.

        Raises:
            UsageError: nothing was logged under its name.
        """
        logged = self.spec.logged or ""
        if logged not in final:
            said = ", ".join(sorted(final)) or "nothing"
            raise UsageError(
                f"evaluate.metrics.{self.name}.logged: test_step logs no {logged}; it logs {said}.",
                remedy="Name one of these, or log it in test_step.",
            )
        told = final[logged]
        value = _number(self.name, told)
        if sum(self.outcomes.rows) == num_rows and _is_mean(self.outcomes, value):
            return _scored(_shortest(_mean(self.outcomes), told), self.spec.mode, num_rows, self.outcomes)
        value = _shortest(value, told)
        return _scored(value, self.spec.mode, num_rows, Outcomes("dataset", [value], [num_rows]))


def _shortest(value: float, told: Any) -> float:
    """Of what was computed in single precision the shortest decimal: a gate at 0.95 is not missed by 0.949999988."""
    single = isinstance(told, torch.Tensor) and told.dtype is torch.float32
    return float(str(np.float32(value))) if single else value


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _scored(value: float, mode: str, rows: int, outcomes: Outcomes) -> Scored:
    return Scored(MetricValue(value=value, mode=mode, rows=rows, unit=outcomes.unit), outcomes)


def _is_mean(outcomes: Outcomes, value: float) -> bool:
    if not all(map(math.isfinite, outcomes.values)):
        return False
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
