"""Which torchmetrics classes can be computed again on resampled rows, and what is said of the others."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torchmetrics

from data_contracts.errors import UsageError
from tasks.evidence.resampled_metrics import keeps_pairs, resampled_metric


@pytest.mark.parametrize(
    ("class_path", "init_args", "reason"),
    [
        (None, {}, "it is logged by test_step, and is not a mean over rows"),
        ("metrics.Mine", {}, "metrics.Mine is a metric of your own, and not a mean over rows"),
        ("torchmetrics.SumMetric", {}, "SumMetric is not a mean over rows, and not among the metrics"),
        ("torchmetrics.AUROC", {"task": "multilabel", "num_labels": 3}, "AUROC with task: multilabel is not supported"),
        ("torchmetrics.classification.BinaryAUROC", {"thresholds": 5}, "BinaryAUROC with thresholds: 5 is not supp"),
        ("torchmetrics.CohenKappa", {"task": "binary", "weights": "linear"}, "with weights: linear is not supported"),
        ("torchmetrics.Accuracy", {"task": "multiclass"}, "Accuracy needs num_classes"),
        (
            "torchmetrics.classification.MulticlassRecall",
            {"num_classes": 3, "average": None},
            "MulticlassRecall with average: None gives several numbers",
        ),
        ("torchmetrics.AveragePrecision", {"task": "multiclass", "num_classes": 3}, "over several classes"),
        ("torchmetrics.MeanSquaredError", {"num_outputs": 2, "squared": False}, "with num_outputs: 2 is not supported"),
    ],
)
def test_what_cannot_be_resampled_is_said(class_path: str | None, init_args: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=f"evaluate.metrics.score cannot be resampled: .*{reason}"):
        resampled_metric("score", class_path, init_args)
    assert not keeps_pairs(class_path, init_args)


@pytest.mark.parametrize("base", ["Accuracy", "Precision", "Recall", "Specificity", "F1Score", "FBetaScore",
                                  "JaccardIndex", "CalibrationError", "AUROC"])  # fmt: skip
def test_defaults_are_those_of_torchmetrics(base: str) -> None:
    """Also of the functions with `task`, some of which average otherwise than the class of one task."""
    for path, args in ((base, {"task": "multiclass"}), (f"Multiclass{base}", {})):
        kind = getattr(torchmetrics.classification, path)
        defaults = inspect.signature(kind.__new__ if args else kind.__init__).parameters
        found = resampled_metric("", f"torchmetrics.classification.{path}", {**args, "num_classes": 3}).options
        for name, value in found.items():
            if name in defaults and name not in ("num_classes", "beta"):
                assert value == defaults[name].default, (path, name)
