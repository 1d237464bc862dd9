"""What a rank has accumulated within an epoch: means of logged values, and the module's torchmetrics.

Neither Lightning nor a state dictionary keeps these, so the epoch in which a run was resumed would report, and a
plateau schedule act on, the mean over its remaining steps only.
"""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torch import Tensor
from torchmetrics import Metric


def capture_running(trainer: L.Trainer) -> dict[str, Any]:
    """The accumulated values of this rank, as values that `state.encode` takes; empty between epochs."""
    logged = {
        key: {name: getattr(metric, name) for name in metric._defaults}
        for key, metric in _logged(trainer).items()
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset
    }
    metrics = {
        path: {"count": metric._update_count, "states": {name: getattr(metric, name) for name in metric._defaults}}
        for path, metric in _own_metrics(trainer)
        if metric._update_count
    }
    return {"logged": logged, "metrics": metrics}


def restore_running(trainer: L.Trainer, state: dict[str, Any]) -> None:
    """Go on from what `capture_running` returned."""
    device = trainer.strategy.root_device
    for path, metric in _own_metrics(trainer):
        kept = state["metrics"].get(path)
        if kept is not None:
            for name, value in kept["states"].items():
                setattr(metric, name, _moved(value, device))
            metric._update_count = kept["count"]
            metric._computed = None
    # Lightning makes the accumulator of a logged value when it is logged first; that is when it gets its state.
    results, waiting = _logged(trainer), dict(state["logged"])
    update = results.update_metrics

    def update_metrics(key: str, value: Any, batch_size: int) -> None:
        for name, kept in waiting.pop(key, {}).items():
            setattr(results[key], name, _moved(kept, device))
        update(key, value, batch_size)

    def reset(*args: Any, **kwargs: Any) -> None:
        # A whole reset ends the epoch: what was not logged again since belongs to no later one.
        if not args and not kwargs:
            waiting.clear()
        _ResultCollection.reset(results, *args, **kwargs)

    results.update_metrics = update_metrics
    results.reset = reset  # type: ignore[method-assign]


def _logged(trainer: L.Trainer) -> _ResultCollection:
    return trainer.fit_loop.epoch_loop._results


def _own_metrics(trainer: L.Trainer) -> list[tuple[str, Metric]]:
    modules = trainer.lightning_module.named_modules()
    return [(path, module) for path, module in modules if isinstance(module, Metric)]


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device) if isinstance(value, Tensor) else value
