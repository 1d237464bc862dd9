"""The torchmetrics classes that the evidence can compute again on resampled rows, and the arguments that it honours.

It imports nothing that takes long, because a plan reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from data_contracts.errors import UsageError

Task = Literal["binary", "multiclass", "regression"]
_COUNTS = ("Accuracy", "Precision", "Recall", "Specificity", "F1Score", "FBetaScore", "JaccardIndex",
           "MatthewsCorrCoef", "CohenKappa")  # fmt: skip
_SCORES = ("CalibrationError", "AUROC", "AveragePrecision")
_REGRESSION = ("MeanSquaredError", "R2Score", "PearsonCorrCoef")
_UNAVERAGED = ("MatthewsCorrCoef", "CohenKappa", "CalibrationError")
# Of these the functions with `task` take the micro average by default, and the classes of one task the macro average.
_MICRO = ("Accuracy", "Precision", "Recall", "Specificity", "F1Score", "FBetaScore")
_WITHOUT_EFFECT = {"validate_args", "sync_on_compute", "dist_sync_on_step", "dist_sync_fn", "process_group",
                   "distributed_available_fn", "compute_on_cpu", "compute_with_cache"}  # fmt: skip
# What is honoured at this value only.
_ONLY = {"multidim_average": "global", "top_k": 1, "weights": None, "max_fpr": None, "thresholds": None,
         "normalization": "sigmoid", "num_outputs": 1, "adjusted": 0, "num_labels": None,
         "multioutput": "uniform_average"}  # fmt: skip


@dataclass(frozen=True)
class ResampledMetric:
    """A metric that can be computed again on resampled rows.

    Attributes:
        name: of the metric in the spec.
        base: the name of the class without its task, such as `F1Score`.
        options: the honoured arguments.
    """

    name: str
    base: str
    task: Task
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def average(self) -> str:
        """`binary`, `micro`, `macro` or `weighted`."""
        return "binary" if self.task != "multiclass" else str(self.options["average"])


def cannot_be_resampled(name: str, why: str) -> UsageError:
    """The error for a metric whose evidence cannot be computed."""
    return UsageError(
        f"evaluate.metrics.{name} cannot be resampled: {why}.",
        remedy="Leave confidence, margin, slice and max_gap out of its gates, or use a metric that is a mean over rows "
        "or one that docs/evaluate.md lists.",
    )


def keeps_pairs(class_path: str | None, init_args: Mapping[str, Any]) -> bool:
    """Whether the prediction and the truth of each row are kept for a gate on this metric."""
    try:
        resampled_metric("", class_path, init_args)
    except UsageError:
        return False
    return True


def is_share_of_right_rows(metric: ResampledMetric) -> bool:
    """Whether a metric is the mean over rows of 1 for a right one and 0 for a wrong one."""
    return metric.base == "Accuracy" and metric.average in ("binary", "micro")


def resampled_metric(name: str, class_path: str | None, init_args: Mapping[str, Any]) -> ResampledMetric:
    """The metric of this class with these arguments; UsageError if it cannot be resampled."""
    if class_path is None:
        raise cannot_be_resampled(name, "it is logged by test_step, and is not a mean over rows")
    kind = class_path.rpartition(".")[2]
    base, task = _task(name, class_path, kind, init_args)
    asked = dict(init_args)
    asked.pop("task", None)
    options = _honoured(base, task, kind == base)
    for argument, value in asked.items():
        if argument in options:
            options[argument] = value
        elif argument in _ONLY and value != _ONLY[argument] and not (argument == "weights" and value == "none"):
            raise cannot_be_resampled(name, f"{kind} with {argument}: {value} is not supported")
        elif argument not in _ONLY and argument not in _WITHOUT_EFFECT and not _unused(argument, task):
            raise cannot_be_resampled(name, f"{kind} with {argument} is not supported")
    if task == "multiclass" and not isinstance(options["num_classes"], int):
        raise cannot_be_resampled(name, f"{kind} needs num_classes")
    if "average" in options and options["average"] not in ("macro", "micro", "weighted"):
        raise cannot_be_resampled(name, f"{kind} with average: {options['average']} gives several numbers")
    if base == "MeanSquaredError" and options["squared"]:
        raise cannot_be_resampled(name, "MeanSquaredError has a value for each row, if it has one number per row")
    return ResampledMetric(name, base, task, options)


def _task(name: str, class_path: str, kind: str, init_args: Mapping[str, Any]) -> tuple[str, Task]:
    if not class_path.startswith("torchmetrics."):
        raise cannot_be_resampled(name, f"{class_path} is a metric of your own, and not a mean over rows")
    if kind in _REGRESSION:
        return kind, "regression"
    known = (*_COUNTS, *_SCORES)
    for task in ("binary", "multiclass"):
        base = kind.removeprefix(task.capitalize())
        if base in known and (kind != base or init_args.get("task") == task):
            if base == "AveragePrecision" and task == "multiclass":
                raise cannot_be_resampled(name, "AveragePrecision over several classes is not supported")
            return base, task
    if kind in known:
        raise cannot_be_resampled(name, f"{kind} with task: {init_args.get('task')} is not supported")
    raise cannot_be_resampled(name, f"{kind} is not a mean over rows, and not among the metrics that are supported")


def _honoured(base: str, task: Task, any_task: bool) -> dict[str, object]:
    """The honoured arguments of a class, with torchmetrics' defaults."""
    if task == "regression":
        return {"squared": True} if base == "MeanSquaredError" else {}
    options: dict[str, object] = {"ignore_index": None}
    if task == "multiclass":
        options["num_classes"] = None
        if base not in _UNAVERAGED:
            options["average"] = "micro" if any_task and base in _MICRO else "macro"
    elif base in _COUNTS:
        options["threshold"] = 0.5
    if base in ("F1Score", "FBetaScore"):
        options |= {"beta": 1.0, "zero_division": 0.0}
    if base == "JaccardIndex":
        options["zero_division"] = 0.0
    if base == "CalibrationError":
        options |= {"n_bins": 15, "norm": "l1"}
    return options


def _unused(argument: str, task: Task) -> bool:
    """Whether the functions with `task` ignore this argument for this task."""
    return argument in ({"num_classes", "average"} if task == "binary" else {"threshold"})
