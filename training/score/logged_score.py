"""Turns the values that `test_step` logs under one name into a metric over the set."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torchmetrics import Metric

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import MetricSpec
from training.metric_state import last_value
from training.score.row_means import Outcomes, due
from training.score.scored import Scored, finite_number, shortest


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
