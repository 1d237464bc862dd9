"""From batches to metrics: the torchmetrics classes that a spec names, over predictions, row by row and batch by batch.

The outcomes are kept so that two models can be compared on the same rows. A metric that is not a mean over rows (such
as an F1 score) is compared over fixed batches if it is a mean over those, else as one number over the whole set.

Whether the scores that a metric gets are logits or probabilities is decided once, from all rows. torchmetrics decides
at each update: scores of which one is outside 0 to 1 are logits. Logits often lie in 0 to 1, so a value would depend on
the size of a batch, and that of a single row on chance. So its classes get probabilities here, which leave them nothing
to decide.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric

from data_contracts.errors import InsufficientEvidence, UsageError
from data_contracts.expressions import NO_VALUE, why_undefined
from data_contracts.pipeline_spec import MetricSpec
from data_contracts.quoting import text_of
from infra import scratch
from training.lightning_adapter import (
    compute_alone,
    keeps_rows,
    last_value,
    normalization,
    order_task,
    ranks_true_rows_alone,
)
from training.score.outcomes import (
    Outcomes,
    PairTable,
    RowDigest,
    Scored,
    as_scored,
    close,
    due,
    finite_number,
    one_number,
    parts,
    shortest,
)
from training.user.imports import borrowed, load_class

ROW_LIMIT = 200_000
TOLERANCE = 1e-5
_EARLIER = "earlier.npy"
_IN_MEMORY_BYTES = 2**24
Batch = tuple[torch.Tensor, torch.Tensor]
# Probabilities that were added up may exceed 1 by a rounding.
_ROUNDING = 1e-6
LOGITS, PROBABILITIES = "logits", "probabilities"


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
                setting = f"evaluate.metrics.{name}.class_path"
                classes[name] = load_class(spec.class_path, Metric, setting, project.resolve())
    return classes


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


class ScoreKind:
    """Decides it for one metric, and turns scores into probabilities.

    Attributes:
        kind: `logits` or `probabilities`; the latter also while all scores so far may be either.
    """

    def __init__(self, name: str, metric: Metric, kind: str | None) -> None:
        """
        Args:
            kind: None if the rows are to decide.

        Raises:
            UsageError: a kind is given, and the metric takes all scores as they are.
        """
        self._name, self._turn = name, normalization(metric)
        self._ignored = getattr(metric, "ignore_index", None)
        if kind is not None and self._turn is None:
            raise UsageError(
                f"evaluate.metrics.{name}.scores has no effect: {type(metric).__name__} takes scores as they are.",
                remedy="Leave it out.",
            )
        self.kind, self._given = kind or PROBABILITIES, kind is not None
        # What was scored while it was open: if that was wrong, it is scored again.
        self._folder: scratch.Scratch | None = None
        self._num_written, self._num_bytes = 0, 0
        self._waiting: list[Batch] = []

    @property
    def is_decided(self) -> bool:
        """Whether the rows have decided it."""
        return bool(self._waiting or self._num_written) or self.kind == LOGITS

    def are_logits_after_all(self, prediction: torch.Tensor, target: torch.Tensor) -> bool:
        """Whether this batch is the first to show that all scores are logits; it is then not among the earlier ones.

        Raises:
            UsageError: a score is not a probability, as was said.
        """
        if self._turn is None or self.kind == LOGITS or not prediction.is_floating_point():
            return False
        if not self._has_outside(prediction, target):
            if not self._given:
                self._keep((prediction, target))
            return False
        if self._given:
            raise UsageError(
                f"evaluate.metrics.{self._name}: a score is below 0 or above 1, but those of an earlier set or the "
                "metric's field scores say that scores are probabilities.",
                remedy=f"Write scores: {LOGITS} or let predict_step return probabilities.",
            )
        self.kind = LOGITS
        return True

    def earlier(self) -> Iterator[Batch]:
        """The batches that were scored before, in order; to be called once."""
        if self._folder is not None:
            with self._folder as folder, (folder.path / _EARLIER).open("rb") as file:
                for _ in range(self._num_written):
                    prediction, target = (torch.from_numpy(np.load(file, allow_pickle=False)) for _ in range(2))
                    yield prediction, target
        yield from self._waiting
        self._waiting.clear()

    def probabilities(self, prediction: torch.Tensor) -> torch.Tensor:
        """The scores of a batch as the metric gets them."""
        if self._turn is None or not prediction.is_floating_point():
            return prediction
        if self.kind == PROBABILITIES:
            # Only those of rows that do not count are outside.
            return prediction.clamp(0, 1)
        # A metric over classes refuses any other shape itself.
        several = self._turn == "softmax" and prediction.ndim > 1
        return prediction.softmax(1) if several else prediction.sigmoid()

    def _keep(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._num_bytes += sum(tensor.nbytes for tensor in batch)
        if self._num_bytes < _IN_MEMORY_BYTES:
            return
        self._folder = self._folder or scratch.make("scores")
        with (self._folder.path / _EARLIER).open("ab") as file:
            for kept in self._waiting:
                for tensor in kept:
                    np.save(file, tensor.numpy(), allow_pickle=False)
        self._num_written, self._num_bytes = self._num_written + len(self._waiting), 0
        self._waiting.clear()

    def _has_outside(self, prediction: torch.Tensor, target: torch.Tensor) -> bool:
        slack = _ROUNDING if self._given else 0.0
        outside = (prediction < -slack) | (prediction > 1 + slack)
        if self._ignored is not None and outside.any():
            kept = target != self._ignored
            outside &= kept.unsqueeze(1) if self._turn == "softmax" else kept
        return bool(outside.any())


@dataclass
class LoggedScore:
    """The values that `test_step` logs under one name, captured at `self.log`; an outcome per fixed batch if it logs
    one each.
    """

    name: str
    spec: MetricSpec
    outcomes: Outcomes = field(default_factory=lambda: Outcomes("batch", [], []))
    _batch: list[float] = field(default_factory=list)
    _metric: Metric | None = None
    _is_mean: bool = True

    def capture(self, value: Any, reduced_by: Any = "mean") -> None:
        """Record the value that `self.log` got in the current batch, and its reduction over batches (`reduce_fx`)."""
        self._is_mean &= isinstance(value, Metric) or reduced_by in ("mean", "avg", torch.mean)
        if isinstance(value, Metric):
            self._metric = value
            value = last_value(value)
        if value is not None:
            self._batch.append(float(value))

    def end_batch(self, size: int) -> None:
        """Record how many rows the batch had."""
        if len(self._batch) == 1 and size:
            self.outcomes.values += self._batch
            self.outcomes.rows.append(size)
            if self._metric is not None and self._is_mean and due(len(self.outcomes.rows)):
                self._is_mean = self._mean_so_far(self._metric)
        self._batch.clear()

    def _mean_so_far(self, metric: Metric) -> bool:
        """Whether a metric object that is logged is the mean over the batches so far."""
        try:
            value = float(copy.deepcopy(metric).compute())
        except Exception:  # it has no value for a part of the rows
            return False
        return self.outcomes.has_mean(value, len(self.outcomes.rows))

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
        computed = final[logged]
        value = finite_number(self.name, computed)
        complete = self._is_mean and sum(self.outcomes.rows) == num_rows
        if complete and self.outcomes.has_mean(value, len(self.outcomes.rows)):
            return Scored.of(shortest(self.outcomes.mean(), computed), self.spec.mode, num_rows, self.outcomes)
        value = shortest(value, computed)
        return Scored.of(value, self.spec.mode, num_rows, Outcomes("dataset", [value], [num_rows]))
