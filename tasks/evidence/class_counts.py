"""Metrics of class counts: accuracy, precision, recall, F1, Jaccard, Matthews, Cohen, from sums over rows.

The sums of K classes are an array (…, 3 K): for each class how many rows of it were predicted right, how many rows
were predicted to be of it, and how many are of it. Formulas and conventions are those of torchmetrics 1.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.evidence.resampled_metrics import ResampledMetric

Sums = NDArray[np.float64]
_EPSILON = float(np.finfo(np.float32).eps)


def num_classes(metric: ResampledMetric) -> int:
    """How many classes are counted."""
    return 2 if metric.task == "binary" else int(metric.options["num_classes"])


def value_of(metric: ResampledMetric, sums: Sums) -> NDArray[np.float64]:
    """The metric (…) from the sums (…, 3 K)."""
    count = num_classes(metric)
    right, predicted, true = sums[..., :count], sums[..., count : 2 * count], sums[..., 2 * count :]
    return np.asarray(_FORMULAS[metric.base](metric, right, predicted, true))


def _divided(top: Any, bottom: Any, zero_division: float = 0.0) -> NDArray[np.float64]:
    bottom = np.asarray(bottom, np.float64)
    return np.where(bottom != 0, top / np.where(bottom != 0, bottom, 1.0), zero_division)


def _f_beta(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    squared = float(metric.options["beta"]) ** 2
    zero = float(metric.options["zero_division"])

    def score(right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
        return _divided((1 + squared) * right, squared * true + predicted, zero)

    return _averaged(metric, score, right, predicted, true)


def _precision(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    return _averaged(metric, lambda right, predicted, _: _divided(right, predicted), right, predicted, true)


def _recall(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    return _averaged(metric, lambda right, _, true: _divided(right, true), right, predicted, true)


def _accuracy(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    if metric.task == "binary":
        return _divided(right.sum(-1), true.sum(-1))
    return _recall(metric, right, predicted, true)


def _specificity(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    rows = true.sum(-1, keepdims=True)

    def score(right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
        all_rows = rows if metric.average in ("macro", "weighted") else rows[..., 0]
        if metric.average == "micro":  # torchmetrics counts each row once for each class
            all_rows = all_rows * num_classes(metric)
        return _divided(all_rows - true - predicted + right, all_rows - true)

    return _averaged(metric, score, right, predicted, true)


def _jaccard(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    zero = float(metric.options["zero_division"])
    either, ignored = predicted + true - right, metric.options["ignore_index"]
    if metric.average == "binary":
        return _divided(right[..., 1], either[..., 1], zero)
    left_out = ignored is not None and 0 <= ignored < num_classes(metric)
    if metric.average == "micro":
        bottom = either.sum(-1) - (either[..., ignored] if left_out else 0.0)
        return _divided(right.sum(-1), bottom, zero)
    if metric.average == "weighted":
        weights = true
    else:
        weights = (predicted + true != 0).astype(np.float64)
        if left_out:
            weights[..., ignored] = 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((weights * _divided(right, either, zero)).sum(-1) / weights.sum(-1))


def _averaged(
    metric: ResampledMetric, score: Callable[[Sums, Sums, Sums], NDArray[np.float64]], *sums: Sums
) -> NDArray[np.float64]:
    right, predicted, true = sums
    if metric.average == "binary":
        return score(right[..., 1], predicted[..., 1], true[..., 1])
    if metric.average == "micro":
        return score(right.sum(-1), predicted.sum(-1), true.sum(-1))
    weights = true if metric.average == "weighted" else (predicted + true - right != 0).astype(np.float64)
    return np.asarray(_divided(weights * score(right, predicted, true), weights.sum(-1, keepdims=True)).sum(-1))


def _kappa(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    rows = true.sum(-1)
    chance = (predicted * true).sum(-1) / rows
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1 - (rows - right.sum(-1)) / (rows - chance))


def _matthews(metric: ResampledMetric, right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    rows, hits = true.sum(-1), right.sum(-1)
    top = hits * rows - (predicted * true).sum(-1)
    bottom = (rows**2 - (predicted**2).sum(-1)) * (rows**2 - (true**2).sum(-1))
    found = _divided(top, np.sqrt(np.maximum(bottom, 0.0)))
    if num_classes(metric) > 2:
        return found
    misses = rows - hits
    odd = _matthews_of_one_class(right, predicted, true)
    found = np.where(bottom == 0, odd, found)
    found = np.where((hits != 0) & (misses == 0), 1.0, found)
    return np.where((hits == 0) & (misses != 0), -1.0, found)


def _matthews_of_one_class(right: Sums, predicted: Sums, true: Sums) -> NDArray[np.float64]:
    """The number of torchmetrics where truth or prediction has only one of two classes."""
    tn, tp = right[..., 0], right[..., 1]
    fp, fn = predicted[..., 1] - tp, true[..., 1] - tp
    root = np.sqrt(_EPSILON)
    cases = [
        ((fn == 0) & (tn == 0), root * (tp - fp)),
        ((fp == 0) & (tn == 0), root * (tp - fn)),
        ((tp == 0) & (fn == 0), root * (tn - fp)),
        ((tp == 0) & (fp == 0), root * (tn - fn)),
        (tp == 0, tn - fp * fn),
        (tn == 0, tp - fp * fn),
        ((fp == 0) | (fn == 0), tp * tn),
    ]
    top = np.select([case for case, _ in cases], [value for _, value in cases], 0.0)
    bottom = (tp + fp + _EPSILON) * (tp + fn + _EPSILON) * (tn + fp + _EPSILON) * (tn + fn + _EPSILON)
    return np.asarray(top / np.sqrt(bottom))


_FORMULAS: dict[str, Callable[[ResampledMetric, Sums, Sums, Sums], NDArray[np.float64]]] = {
    "Accuracy": _accuracy, "Precision": _precision, "Recall": _recall, "Specificity": _specificity,
    "F1Score": _f_beta, "FBetaScore": _f_beta, "JaccardIndex": _jaccard, "MatthewsCorrCoef": _matthews,
    "CohenKappa": _kappa,
}  # fmt: skip
