"""Whether the scores that a metric gets are logits or probabilities: decided once, from all rows.

torchmetrics decides at each update: scores of which one is outside 0 to 1 are logits. Logits often lie in 0 to 1, so a
value would depend on the size of a batch, and that of a single row on chance. So its classes get probabilities here,
which leave them nothing to decide.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torchmetrics import Metric

from data_contracts.errors import UsageError
from infra import scratch
from training.metric_state import normalization

_EARLIER = "earlier.npy"
_IN_MEMORY_BYTES = 2**24
Batch = tuple[torch.Tensor, torch.Tensor]
LOGITS, PROBABILITIES = "logits", "probabilities"
# Probabilities that were added up may exceed 1 by a rounding.
_ROUNDING = 1e-6


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
