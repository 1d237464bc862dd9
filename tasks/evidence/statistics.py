"""Metrics as functions of sums over rows, so that the influence of a row follows from what it adds to the sums.

Each agrees with the torchmetrics class of its name (torchmetrics 1.9), whose conventions it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tasks.evidence import class_counts
from tasks.evidence.predictions import Numbers, classes, counted, probabilities
from tasks.evidence.resampled_metrics import ResampledMetric, cannot_be_resampled

Values = NDArray[np.float64]
RANKED = ("AUROC", "AveragePrecision")
_ZERO = 1e-4  # torchmetrics takes smaller sums of squares for 0 in R²


@dataclass(frozen=True)
class SumStatistic:
    """A metric that is a function of sums over rows.

    Attributes:
        entries: of `target` (rows,) and `prediction`: what each row adds to the sums, (rows, sums).
        value: the metric (…) from sums (…, sums).
    """

    entries: Callable[[Numbers, Numbers], csr_matrix]
    value: Callable[[Values], Values]


def sum_statistic(metric: ResampledMetric, target: Numbers) -> SumStatistic:
    """The statistic of a metric that is not ranked.

    Args:
        target: (rows,) of all rows; regression is centred on its mean, for the sake of rounding.
    """
    if metric.task == "regression":
        if target.ndim != 1:
            raise cannot_be_resampled(metric.name, "a row's truth is not one number")
        return _REGRESSION[metric.base](float(np.mean(target, dtype=np.float64)) if len(target) else 0.0)
    if metric.base == "CalibrationError":
        return _calibration(metric)
    count = class_counts.num_classes(metric)

    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        predicted, kept = classes(metric, prediction), counted(metric, target)
        true = np.where(kept, target, 0).astype(np.int64)
        outside = (true < 0) | (true >= count) | (predicted < 0) | (predicted >= count)
        if (outside & kept).any():
            raise cannot_be_resampled(metric.name, f"a truth or a prediction is not a class from 0 to {count - 1}")
        right = (predicted == true) & kept
        rows = np.arange(len(true))
        places = np.concatenate([true[right], count + predicted[kept], 2 * count + true[kept]])
        at = np.concatenate([rows[right], rows[kept], rows[kept]])
        return csr_matrix((np.ones(len(at)), (at, places)), shape=(len(true), 3 * count))

    return SumStatistic(entries, lambda sums: class_counts.value_of(metric, sums))


def _dense(*columns: Any) -> csr_matrix:
    values = np.stack([np.asarray(one, np.float64) for one in columns], axis=1)
    rows, width = values.shape
    return csr_matrix((values.ravel(), np.tile(np.arange(width), rows), np.arange(0, rows * width + 1, width)),
                      shape=(rows, width))  # fmt: skip


def _doubles(target: Numbers, prediction: Numbers) -> tuple[Values, Values]:
    if prediction.ndim != 1:
        raise ValueError("a row's prediction is not one number")
    return target.astype(np.float64), prediction.astype(np.float64)


def _root_mean_squared_error(centre: float) -> SumStatistic:
    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        true, predicted = _doubles(target, prediction)
        return _dense((predicted - true) ** 2, np.ones(len(true)))

    return SumStatistic(entries, lambda sums: np.sqrt(sums[..., 0] / sums[..., 1]))


def _r2(centre: float) -> SumStatistic:
    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        true, predicted = _doubles(target, prediction)
        return _dense((predicted - true) ** 2, true - centre, (true - centre) ** 2, np.ones(len(true)))

    def value(sums: Values) -> Values:
        rest, first, second, rows = (sums[..., at] for at in range(4))
        total = second - first**2 / rows
        moves = np.abs(total) > _ZERO
        found = np.where(moves, 1 - rest / np.where(moves, total, 1.0), 0.0)
        return np.where(np.abs(rest) > _ZERO, found, 1.0)

    return SumStatistic(entries, value)


def _pearson(centre: float) -> SumStatistic:
    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        true, predicted = _doubles(target, prediction)
        true, predicted = true - centre, predicted - predicted.mean()
        return _dense(true, predicted, true**2, predicted**2, true * predicted, np.ones(len(true)))

    def value(sums: Values) -> Values:
        x, y, xx, yy, xy, rows = (sums[..., at] for at in range(6))
        spread = (xx - x**2 / rows) * (yy - y**2 / rows)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(spread > 0, np.clip((xy - x * y / rows) / np.sqrt(spread), -1, 1), np.nan)

    return SumStatistic(entries, value)


_REGRESSION = {"MeanSquaredError": _root_mean_squared_error, "R2Score": _r2, "PearsonCorrCoef": _pearson}


def _edges(count: int, kind: np.dtype) -> Numbers:
    """Numbers from 0 to 1, rounded as `torch.linspace` rounds them: from both ends, with a step of their precision."""
    last = count - 1
    step, places = float(kind.type(1) / kind.type(last)), np.arange(count)
    return np.where(places < count // 2, places * step, 1 - (last - places) * step).astype(kind)


def _calibration(metric: ResampledMetric) -> SumStatistic:
    """Sums by bin of the confidence: of (right - confidence), and of the rows."""
    # One bin more: a confidence of exactly 1 has its own.
    bins, norm = int(metric.options["n_bins"]) + 1, metric.options["norm"]

    def entries(target: Numbers, prediction: Numbers) -> csr_matrix:
        kept = counted(metric, target)
        found, true = probabilities(metric, prediction[kept]), target[kept]
        if metric.task == "binary":
            confidence, right = found, true
        else:
            confidence, right = found.max(axis=1), found.argmax(axis=1) == true
        places = np.searchsorted(_edges(bins, confidence.dtype), confidence, side="right") - 1
        rows = np.arange(len(target))[kept]
        off = right.astype(np.float64) - confidence
        values, at = np.concatenate([off, np.ones(len(off))]), np.concatenate([rows, rows])
        return csr_matrix((values, (at, np.concatenate([places, bins + places]))), shape=(len(target), 2 * bins))

    def value(sums: Values) -> Values:
        off, rows = np.abs(sums[..., :bins]), sums[..., bins:]
        apart = np.where(rows > 0.5, off / np.maximum(rows, 1), 0.0)
        if norm == "max":
            return np.asarray(apart.max(-1))
        squared = norm == "l2"
        found = (rows * apart ** (2 if squared else 1)).sum(-1) / rows.sum(-1)
        return np.asarray(np.sqrt(found) if squared else found)

    return SumStatistic(entries, value)
