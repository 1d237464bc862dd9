"""Keeps the truth and the prediction of each row: for a metric that is computed again on resampled rows, or for pages.

Most gates need no pairs, because the mean of a metric's outcomes is the metric. `infra.records.evaluations` reads
the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import torch

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import MetricSpec
from training.score.scored import Scored
from training.score.table_file import TableFile

TARGET, PREDICTION = "target", "prediction"
MAX_VALUES = 100
# For pages: 64 MiB of truths and predictions.
MOST_SHOWN = 2**24
SHOWN = "shown.parquet"


class PairTable:
    """The pairs of one metric on one set: columns `target`, and `prediction` or `prediction_0` … `prediction_<n-1>`."""

    def __init__(self, path: Path, *, of_mean: bool = False, most_values: int | None = None) -> None:
        """
        Args:
            of_mean: the metric is a mean over rows, whatever is predicted; its pairs are kept only if it must be.
            most_values: nothing is kept of a set that has more; None for no limit.
        """
        self._file, self._of_mean = TableFile(path), of_mean
        self._most = math.inf if most_values is None else most_values
        self._left, self._refused = self._most, ""

    def clear(self) -> None:
        """Forget all rows: they come again."""
        self._file.close()
        self._file, self._left, self._refused = TableFile(self._file.path), self._most, ""

    def add(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        """Append a batch: `prediction` (B,), (B, 1) or (B, n) and `target` (B,) or (B, 1)."""
        if self._refused:
            return
        prediction, target = _flat(prediction), _flat(target)
        if target.ndim != 1 or prediction.ndim > 2 or len(prediction) != len(target):
            shapes = f"{tuple(prediction.shape)}, and the truth of shape {tuple(target.shape)}"
            self._refuse(f"a batch's prediction is of shape {shapes}, which is not one value or one list for each row")
            return
        columns = {TARGET: target}
        if prediction.ndim == 1:
            columns[PREDICTION] = prediction
        elif prediction.shape[1] <= MAX_VALUES:
            columns |= {f"{PREDICTION}_{at}": prediction[:, at].contiguous() for at in range(prediction.shape[1])}
        else:
            self._refuse(f"a row's prediction has {prediction.shape[1]} values, and at most {MAX_VALUES} are kept")
            return
        self._left -= len(target) * len(columns)
        if self._left < 0:
            self._refuse("the set has too many rows")
            return
        if not self._file.append(pa.table({name: pa.array(one.numpy()) for name, one in columns.items()})):
            self._refuse("the shape or type of the predictions changes from batch to batch")

    def close(self, name: str, scored: Scored) -> str:
        """Complete the file; returns its name, or "" if the outcomes tell as much.

        UsageError if the pairs are needed and could not be kept.
        """
        file = self.close_for_pages()
        # Some predictions make a mean of any metric, such as the precision of a model that always says yes. The pairs
        # are kept all the same: another model, for which it is none, is compared with this one.
        if scored.value.unit == "row" and self._of_mean:
            return ""
        if self._refused and scored.value.unit == "dataset":
            raise UsageError(
                f"evaluate.metrics.{name} cannot be resampled: {self._refused}.",
                remedy="Leave confidence, slice and max_gap out of its gates, or let predict_step return one value or "
                "one list of values for each row.",
            )
        return file

    def close_for_pages(self) -> str:
        """Complete the file; returns its name, or "" if the pairs could not be kept."""
        written = self._file.close()
        return self._file.path.name if written and not self._refused else ""

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        self._file.drop()


# By the name of the set, and then of the metric.
Pairs = Mapping[str, Mapping[str, PairTable]]


def pair_tables(folder: Path, sets: Sequence[str], metrics: Mapping[str, MetricSpec]) -> Pairs:
    """A table for each of the metrics on each set, whose files lie in `folder`."""
    return {
        name: {
            one: PairTable(folder / f"pairs-{at * len(metrics) + number}.parquet", of_mean=_is_mean(spec))
            for number, (one, spec) in enumerate(metrics.items())
        }
        for at, name in enumerate(sets)
    }


def _is_mean(spec: MetricSpec) -> bool:
    """Whether a torchmetrics class is the share of right rows."""
    name = (spec.class_path or "").rpartition(".")[2]
    average = spec.init_args.get("average", "macro" if name.startswith("Multiclass") else "micro")
    return name.endswith("Accuracy") and (name.startswith("Binary") or average == "micro")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu()
    # Parquet has no bfloat16.
    tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return tensor[:, 0].contiguous() if tensor.ndim == 2 and tensor.shape[1] == 1 else tensor
