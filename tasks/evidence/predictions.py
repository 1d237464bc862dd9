"""What torchmetrics makes of predictions before it scores them: classes, and which rows count.

Scores that it may take for logits are kept as probabilities (`training.score.metrics`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.evidence.resampled_metrics import ResampledMetric, cannot_be_resampled

Numbers = NDArray[Any]


def counted(metric: ResampledMetric, target: Numbers) -> NDArray[np.bool_]:
    """(rows,) whether the row counts: rows with `ignore_index` for a truth do not."""
    ignored = metric.options.get("ignore_index")
    return np.ones(len(target), np.bool_) if ignored is None else np.asarray(target != ignored)


def probabilities(metric: ResampledMetric, prediction: Numbers) -> Numbers:
    """The predictions (rows,) or (rows, classes), which are probabilities.

    UsageError if their shape or type does not fit the metric's task.
    """
    several = metric.task == "multiclass"
    if prediction.ndim != (2 if several else 1) or prediction.dtype.kind != "f":
        wanted = "one score for each class" if several else "one score"
        raise cannot_be_resampled(metric.name, f"a row's prediction is not {wanted}")
    _check_classes(metric, prediction)
    return prediction


def classes(metric: ResampledMetric, prediction: Numbers) -> NDArray[np.int64]:
    """The predicted class of each row. UsageError if the predictions are neither scores nor classes."""
    if metric.task == "multiclass":
        _check_classes(metric, prediction)
        found = prediction.argmax(axis=1) if prediction.ndim == 2 else prediction
        return found.astype(np.int64)
    if prediction.ndim != 1:
        raise cannot_be_resampled(metric.name, "a row's prediction is not one score or class")
    if prediction.dtype.kind != "f":
        return prediction.astype(np.int64)
    # torch compares in the precision of the prediction.
    threshold = prediction.dtype.type(metric.options["threshold"])
    return (probabilities(metric, prediction) > threshold).astype(np.int64)


def _check_classes(metric: ResampledMetric, prediction: Numbers) -> None:
    if prediction.ndim == 2 and prediction.shape[1] != metric.options["num_classes"]:
        raise cannot_be_resampled(
            metric.name, f"a row's prediction has {prediction.shape[1]} scores and num_classes is "
            f"{metric.options['num_classes']}"
        )  # fmt: skip
