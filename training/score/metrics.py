"""From batches to metrics: the torchmetrics classes that a spec names, over predictions, row by row and batch by batch.

The outcomes are kept so that two models can be compared on the same rows. A metric that is not a mean over rows (such
as an F1 score) is compared over fixed batches if it is a mean over those, else as one number over the whole set.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchmetrics import Metric

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.expressions import NO_VALUE, why_undefined
from data_contracts.pipeline_spec import MetricSpec
from data_contracts.quoting import text_of
from training.metric_state import compute_alone, keeps_rows, order_task, ranks_true_rows_alone
from training.score.batch_entries import as_scored
from training.score.pairs import PairTable
from training.score.row_means import Outcomes, close, due, parts
from training.score.rows_digest import RowDigest
from training.score.score_kind import ScoreKind
from training.score.scored import Scored, finite_number, one_number, shortest
from training.user.imports import borrowed, user_code

ROW_LIMIT = 200_000
TOLERANCE = 1e-5


def metric_classes(metrics: Mapping[str, MetricSpec], project: Path, other: Path) -> dict[str, type[Metric]]:
    """The torchmetrics class of every metric that names one.

    Args:
        project: root of the code that the metrics are taken from.
        other: root of the code that the module is taken from, which may have modules of the same names.

    Raises:
        UsageError: there is no such class, or it is not a torchmetrics Metric.
        UserCodeError: the file that defines it raises on import.
    """
    classes = {}
    with borrowed(project, other):
        for name, spec in metrics.items():
            if spec.class_path is not None:
                with user_code(f"evaluate.metrics.{name}.class_path: importing {spec.class_path}", project.resolve()):
                    classes[name] = _metric_class(name, spec)
    return classes


def _metric_class(name: str, spec: MetricSpec) -> type[Metric]:
    assert spec.class_path is not None
    module, _, attribute = spec.class_path.rpartition(".")
    try:
        metric_class = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"evaluate.metrics.{name}.class_path: there is no {spec.class_path}.",
            remedy="Name a torchmetrics class, such as torchmetrics.classification.MulticlassAccuracy.",
        ) from error
    if not (isinstance(metric_class, type) and issubclass(metric_class, Metric)):
        raise UsageError(
            f"evaluate.metrics.{name}.class_path: {spec.class_path} is not a torchmetrics Metric.",
            remedy="Name a class derived from torchmetrics.Metric.",
        )
    return metric_class


class PredictionScore:
    """A torchmetrics metric over predictions, updated batch by batch; `digest` takes the targets, `pairs` the rows."""

    def __init__(
        self,
        name: str,
        spec: MetricSpec,
        kind: type[Metric],
        digest: RowDigest | None = None,
        pairs: PairTable | None = None,
        scores: str | None = None,
    ) -> None:
        """`scores`: what they were on an earlier set, `logits` or `probabilities`; None without one."""
        try:
            self._whole, self._single, twin = (compute_alone(kind(**spec.init_args)) for _ in range(3))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"evaluate.metrics.{name}.init_args: {kind.__name__} refuses them: {text_of(error)}.",
                remedy="Correct init_args.",
            ) from error
        self._name, self._mode, self._kind = name, spec.mode, kind
        self._by_row = False  # whether the predictions so far had as many entries as the batch has rows
        # A metric that keeps all rows would keep them twice.
        self._exact = None if keeps_rows(twin) else twin.set_dtype(torch.float64)
        self.scores = ScoreKind(name, self._whole, spec.scores or scores)
        self._nan_rows, self._digest, self._pairs = 0, digest, pairs
        self._begin()

    def _begin(self) -> None:
        """Forget all batches."""
        self._whole.reset()
        if self._exact is not None:
            self._exact.reset()
        self._rows: Outcomes | None = Outcomes("row", [], [])
        self._batches: Outcomes | None = Outcomes("batch", [], [])
        self._num_rows = self._num_batches = 0
        self._class_rows = _ClassRows(self._whole)
        if self._pairs is not None:
            self._pairs.clear()

    def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        """Score one batch: `prediction` (B, …) against `target` (B, …)."""
        prediction, target = as_scored(self._kind, prediction.detach().cpu(), target.detach().cpu())
        if prediction.is_floating_point():
            prediction = prediction.float()
        size = len(target)
        if not size:
            return
        if self._by_row and len(prediction) != size:
            raise UsageError(
                f"evaluate.metrics.{self._name}: predict_step returns a tensor of shape {tuple(prediction.shape)} "
                f"for a batch of {size} row{'' if size == 1 else 's'}.",
                remedy="A squeeze() without a dimension also removes that of the rows where there is one row: name the "
                "dimension, such as squeeze(1).",
            )
        self._by_row = len(prediction) == size > 1
        self._nan_rows += _nan_rows(prediction, target)
        if self._digest is not None:
            self._digest.update(target.double())
        try:
            again = self.scores.are_logits_after_all(prediction, target)
        except RuntimeError:  # shapes that the metric refuses
            again = False
        if again:
            self._begin()
            for earlier in self.scores.earlier():
                self._score(*earlier)
        self._score(prediction, target)

    def _score(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        size, prediction = len(target), self.scores.probabilities(prediction)
        try:
            self._whole.update(prediction, target)
        except (ValueError, RuntimeError, TypeError) as error:
            raise UsageError(
                f"evaluate.metrics.{self._name}: it cannot score predictions of shape {tuple(prediction.shape)} "
                f"against targets of shape {tuple(target.shape)}: {text_of(error)}.",
                remedy="Check target, prediction and init_args.",
            ) from error
        if self._exact is not None:
            try:
                self._exact.update(_double(prediction), _double(target))
            except Exception:  # its own single precision is mixed in
                self._exact = None
        self._num_rows += size
        self._num_batches += 1
        self._class_rows.add(target)
        if self._pairs is not None:
            self._pairs.add(prediction, target)
        self._batches = self._scored(self._batches, prediction, target, size)
        if self._num_rows > ROW_LIMIT:
            self._rows = None
        self._rows = self._scored(self._rows, prediction, target, 1)
        self._drop_what_is_not_a_mean(prediction, target)

    def result(self) -> Scored:
        """The metric over all rows, with the finest outcomes whose mean it is; NaN if it is not defined for them.

        Raises:
            UsageError: the metric gives several numbers, or an infinite one.
            InsufficientEvidence: a prediction or a target is NaN.
        """
        if self._nan_rows:
            raise InsufficientEvidence(
                f"evaluate.metrics.{self._name}: the prediction or the truth is NaN in {self._nan_rows:,} of "
                f"{self._num_rows:,} rows, so the gate cannot decide.",
                remedy="Look at the model's weights and the test rows.",
            )
        scored = self._result()
        if self._digest is not None:
            scored.rows = {"of": "truth", "digest": self._digest.hexdigest()}
        return scored

    def _result(self) -> Scored:
        computed = self._whole.compute()
        reason = "" if not math.isnan(one_number(self._name, computed)) else NO_VALUE
        if reason := self._class_rows.why_undefined() or reason:
            return Scored.without_value(reason, self._mode, self._num_rows)
        value, in_double = self._own_value(finite_number(self._name, computed), computed)
        additions = 0 if in_double else self._num_batches
        if self._rows is not None and self._rows.has_mean(value, additions, in_double):
            return Scored.of(self._rows.mean(), self._mode, self._num_rows, self._rows)
        outcomes = Outcomes("dataset", [value], [self._num_rows])
        if self._batches is not None and self._batches.has_mean(value, additions, in_double):
            outcomes = self._batches
        return Scored.of(value, self._mode, self._num_rows, outcomes)

    def _own_value(self, single: float, computed: Any) -> tuple[float, bool]:
        """The metric's own value, and whether it is in double precision, as it is where torchmetrics supports it."""
        value = shortest(single, computed)
        if self._exact is not None:
            with contextlib.suppress(Exception):
                exact = self._exact.compute()
                if math.isclose(float(exact), value, rel_tol=TOLERANCE, abs_tol=1e-9):
                    return float(exact), exact.dtype is torch.float64
        return value, False

    def _drop_what_is_not_a_mean(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        """Drop outcomes whose mean is not the metric: in parts of this batch, or over all batches so far."""
        if self._rows is not None and not self._is_mean_in_parts(self._rows, prediction, target):
            self._rows = None
        if not due(self._num_batches) or (self._rows is None and self._batches is None):
            return
        try:
            value = float(self._whole.compute())
        except Exception:  # it has no value for these rows alone
            self._rows = self._batches = None
            return
        if self._rows is not None and not self._rows.has_mean(value, self._num_batches):
            self._rows = None
        if self._batches is not None and not self._batches.has_mean(value, self._num_batches):
            self._batches = None

    def _is_mean_in_parts(self, outcomes: Outcomes, prediction: torch.Tensor, target: torch.Tensor) -> bool:
        values = outcomes.values[-len(target) :]
        try:
            return all(
                close([values[at] for at in part], [1] * len(part), self._alone(prediction[part], target[part]))
                for part in parts(values)
            )
        except Exception:  # it has no value for these rows alone
            return False

    def _scored(
        self, outcomes: Outcomes | None, prediction: torch.Tensor, target: torch.Tensor, size: int
    ) -> Outcomes | None:
        """`outcomes` with those of a batch, in pieces of `size` rows; None once a piece cannot be scored alone."""
        if outcomes is None:
            return None
        try:
            for at in range(0, len(target), size):
                outcomes.values.append(self._alone(prediction[at : at + size], target[at : at + size]))
                outcomes.rows.append(size)
        # Whatever a metric raises on a single row (some need two): only the whole set must have a value.
        except Exception:
            return None
        return outcomes

    def _alone(self, prediction: torch.Tensor, target: torch.Tensor) -> float:
        self._single.reset()
        self._single.update(prediction, target)
        return float(self._single.compute())


class _ClassRows:
    """The rows of each class so far, for a metric of the order of scores; for others, nothing is counted.

    Without some rows of a class torchmetrics warns and counts 0, or leaves the class out of an average.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric, self._task = metric, order_task(metric)
        self._ignored: int | None = getattr(metric, "ignore_index", None)
        self._num_classes: int = getattr(metric, "num_classes", 1)
        self._of_class = self._rows = torch.zeros(1, dtype=torch.int64)

    def add(self, target: torch.Tensor) -> None:
        """Count the rows of a batch whose truth the metric has taken."""
        if self._task is None:
            return
        # One line for each class that is ranked against the rest.
        lines = target.transpose(0, 1).flatten(1) if self._task == "Multilabel" else target.reshape(1, -1)
        kept = torch.ones_like(lines, dtype=torch.bool) if self._ignored is None else lines != self._ignored
        if self._task == "Multiclass":
            of_class = torch.bincount(lines[kept].long(), minlength=self._num_classes)[: self._num_classes]
        else:
            of_class = ((lines == 1) & kept).sum(1)
        self._of_class, self._rows = self._of_class + of_class, self._rows + kept.sum(1)

    def why_undefined(self) -> str:
        """Why the metric has no value; "" if it has one."""
        if self._task is None:
            return ""
        average, of_class = getattr(self._metric, "average", None), self._of_class
        rows = self._rows.expand_as(of_class)
        if average == "micro":
            of_class, rows = of_class.sum(0, keepdim=True), rows.sum(0, keepdim=True)
        # A weighted average leaves out a class without rows.
        ranked = of_class > 0 if average == "weighted" else of_class >= 0
        numbers = torch.nonzero(ranked).flatten() + int(self._task == "Binary" or average == "micro")
        counts = dict(zip(numbers.tolist(), of_class[ranked].tolist(), strict=True))
        return why_undefined(counts, rows[ranked].tolist(), needs_others=not ranks_true_rows_alone(self._metric))


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _nan_rows(*tensors: torch.Tensor) -> int:
    """How many rows hold NaN in any of the tensors (B, …)."""
    size = len(tensors[-1])
    found = torch.zeros(size, dtype=torch.bool)
    for tensor in tensors:
        nan = tensor.isnan()
        # A prediction whose first dimension is not the rows counts as a whole.
        found |= nan.reshape(size, -1).any(1) if nan.dim() and len(nan) == size else nan.any()
    return int(found.sum())
