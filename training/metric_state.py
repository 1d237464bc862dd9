"""The only module that relies on torchmetrics' internals: the accumulated state that a metric's `state_dict` leaves
out.

The table in `tests/unit/training/test_lightning_adapter.py` has our assumptions about each.
"""

from __future__ import annotations

from typing import Any

from torchmetrics import Metric


def states_of(metric: Metric) -> dict[str, Any]:
    """The accumulated states by name, tensors or lists of them; relies on `Metric._defaults`."""
    return {name: getattr(metric, name) for name in metric._defaults}


def update_count(metric: Metric) -> int:
    """How often the metric was updated since its last reset; relies on `Metric._update_count`."""
    return metric._update_count


def restore_states(metric: Metric, states: dict[str, Any], count: int) -> None:
    """Make a metric continue from states that `states_of` returned; relies on `_update_count` and `_computed`."""
    for name, value in states.items():
        setattr(metric, name, value)
    metric._update_count = count
    metric._computed = None


def keeps_rows(metric: Metric) -> bool:
    """Whether the metric keeps its inputs instead of sums; relies on a list as that state's default in `_defaults`."""
    return any(isinstance(default, list) for default in metric._defaults.values())


def last_value(metric: Metric) -> Any:
    """The metric's value on the last batch it was called with; relies on `Metric._forward_cache`."""
    return metric._forward_cache


def cache_result(metric: Metric, value: Any) -> None:
    """Make `compute` return this value until the next update; relies on `Metric._computed`."""
    metric._computed = value


def compute_alone(metric: Metric) -> Metric:
    """The metric, which exchanges nothing with other ranks; relies on `Metric.distributed_available_fn`."""
    for part in metric.modules():
        if isinstance(part, Metric):
            part.distributed_available_fn = lambda: False
    return metric


def normalization(metric: Metric) -> str | None:
    """What the metric makes of scores that it takes for logits, `sigmoid` or `softmax`; None if it takes all as they
    are; relies on which classes call `normalize_logits_if_needed`.
    """
    names = _task_classes(metric)
    if not names.isdisjoint(_SOFTMAX):
        return "softmax"
    if any(name.startswith(("Binary", "Multilabel")) for name in names):
        return getattr(metric, "normalization", "sigmoid")
    return None


def order_task(metric: Metric) -> str | None:
    """`Binary`, `Multiclass` or `Multilabel` if the metric is one of the order of scores, else None; relies on these
    being derived from a precision-recall curve.
    """
    return next((task for task in _TASKS if f"{task}PrecisionRecallCurve" in _task_classes(metric)), None)


def ranks_true_rows_alone(metric: Metric) -> bool:
    """Whether a metric of the order of scores has a value where all rows are true; relies on the name of its class."""
    return any(name.endswith("AveragePrecision") for name in _task_classes(metric))


_TASKS = ("Binary", "Multiclass", "Multilabel")
_SOFTMAX = {"MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss"}


def _task_classes(metric: Metric) -> set[str]:
    """The names of torchmetrics' classes for one task that the metric's class is, or is derived from."""
    return {one.__name__ for one in type(metric).__mro__ if one.__module__.startswith("torchmetrics.classification.")}
