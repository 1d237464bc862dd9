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


def whole_state(metric: Metric) -> dict[str, Any]:
    """State that an update or a result changes, uncopied; relies on `_defaults`, `_update_count` and `_computed`."""
    return {**states_of(metric), "_update_count": metric._update_count, "_computed": metric._computed}


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
