"""Saves and restores what a rank has accumulated within an epoch: means of logged values and the module's torchmetrics.

Neither Lightning nor a state dictionary keeps these. Without them, the epoch in which a run resumes would report the
mean over its remaining steps only, and a plateau schedule would act on it.
"""

from __future__ import annotations

from typing import Any

import lightning as L
from torch import Tensor
from torchmetrics import Metric

from training.lightning_adapter import capture_logged, resume_logged
from training.metric_state import restore_states, states_of, update_count


def capture_running(trainer: L.Trainer) -> dict[str, Any]:
    """The accumulated values of this rank, as values that `state.encode` takes; empty between epochs."""
    metrics = {
        path: {"count": update_count(metric), "states": states_of(metric)}
        for path, metric in _own_metrics(trainer)
        if update_count(metric)
    }
    return {"logged": capture_logged(trainer), "metrics": metrics}


def restore_running(trainer: L.Trainer, state: dict[str, Any]) -> None:
    """Restore what `capture_running` returned."""
    device = trainer.strategy.root_device
    for path, metric in _own_metrics(trainer):
        kept = state["metrics"].get(path)
        if kept is not None:
            restore_states(metric, _moved(kept["states"], device), kept["count"])
    resume_logged(trainer, _moved(state["logged"], device))


def _own_metrics(trainer: L.Trainer) -> list[tuple[str, Metric]]:
    modules = trainer.lightning_module.named_modules()
    return [(path, module) for path, module in modules if isinstance(module, Metric)]


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    if isinstance(value, dict):
        return {name: _moved(item, device) for name, item in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value
