"""Validation over several ranks: what each logged of its own rows becomes one value, the same on all of them.

Lightning keeps each rank's own mean unless the module asks for `sync_dist`, which hangs where a value is logged on some
ranks alone. Here nothing is exchanged before the ranks have reached the end, whatever each has logged on the way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

_OVER_RANKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "min": torch.amin,
    "max": torch.amax,
}


class SharedValidation(_EvaluationLoop):
    """The validation loop of a training on several ranks."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)

    def _store_dataloader_outputs(self) -> None:
        with _no_advice():
            super()._store_dataloader_outputs()

    def _on_evaluation_epoch_end(self) -> None:
        self._share()
        with _no_advice():
            super()._on_evaluation_epoch_end()
        # Once more, for what the hooks of the epoch's end logged; what is shared already stays as it is.
        self._share()

    def _share(self) -> None:
        """Reduce what the ranks logged, over all names that any of them has."""
        if self.trainer.sanity_checking:
            return
        mine = {key: self._held(item) for key, item in self._results.items() if _is_shared(item)}
        parts: list[Any] = [None] * self.trainer.world_size
        dist.all_gather_object(parts, mine)
        connector = self.trainer._logger_connector
        everywhere: dict[str, torch.Tensor] = {}
        for key in dict.fromkeys(key for part in parts for key in part):
            held = [part[key] for part in parts if key in part]
            value = _reduce(held).to(self.trainer.strategy.root_device)
            if key in mine:
                self._results[key]._computed = value
            for to, names in held[0]["names"].items():
                getattr(connector, f"_{to}_metrics").update(dict.fromkeys(names, value))
            everywhere |= dict.fromkeys(held[0]["names"]["logged"], value)
        self._logged_outputs.insert(0, everywhere)

    def _held(self, item: _ResultMetric) -> dict[str, Any]:
        """What this rank has of a logged value, and the names it goes by."""
        name, forked = self._results._forked_name(item, on_step=False)
        names = {
            "callback": [name, forked],
            "logged": [forked] if item.meta.logger else [],
            "progress_bar": [forked] if item.meta.prog_bar else [],
        }
        weight = item.cumulated_batch_size if item.meta.is_mean_reduction else torch.tensor(1)
        return {"names": names, "how": item.meta.reduce_fx.__name__, "value": item.value.cpu(), "weight": weight.cpu()}


def _is_shared(item: _ResultMetric) -> bool:
    """Whether it is ours to reduce: torchmetrics' objects and `sync_dist` see to themselves."""
    sync = item.meta.sync
    return item.is_tensor and item.meta.on_epoch and not (item.has_reset or sync.should or sync.rank_zero_only)


def _reduce(held: list[dict[str, Any]]) -> torch.Tensor:
    values = torch.stack([one["value"] for one in held])
    if held[0]["how"] in _OVER_RANKS:
        return _OVER_RANKS[held[0]["how"]](values)
    # A mean is held as the sum of value x rows, beside the rows.
    return values.sum() / torch.stack([one["weight"] for one in held]).sum()


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without Lightning's advice to use `sync_dist`, which the sharing here stands for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*sync_dist=True.*")
        yield
