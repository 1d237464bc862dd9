"""The state that a resumed training needs besides Lightning's: generators, running means, positions, logged values.

It is added to each checkpoint, read before Lightning restores its own part, and restored before the first step. What a
rank has accumulated within an epoch (means of logged values and the module's torchmetrics) is part of it: neither
Lightning nor a state dictionary keeps these. Without them, the epoch in which a run resumes would report the mean over
its remaining steps only, and a plateau schedule would act on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor, nn
from torchmetrics import Metric

from data_contracts.errors import CorruptError, TrainwrightError
from infra.records.handoffs import plain_name
from training.checkpoint.saver import capture_rng, read_history, read_rank_state, restore_rng, seed_rank
from training.fit.guards import all_finite, check_resumed
from training.fit.launch_context import Context
from training.fit.loggers import History
from training.lightning_adapter import (
    adapt_checkpoint,
    batches_begun,
    capture_logged,
    loader_states,
    replay_batches,
    restore_callback_metrics,
    restore_states,
    resume_logged,
    states_of,
    update_count,
)
from training.loader.loaders import loader_of

KEY = "trainwright"


class Resume:
    """One rank's state, saved and restored.

    Args:
        own_loader: whether the batches are the user's own; a rank's loader may then differ in position from rank 0's.
        folder: files of the checkpoint that is resumed from; None when a training begins.
        samples: after how many samples that checkpoint was made, as it was sealed; 0 when a training begins.

    Attributes:
        metrics: the newest value of each metric that was logged.
    """

    def __init__(self, context: Context, history: History, own_loader: bool, folder: Path | None, samples: int) -> None:
        self.metrics: dict[str, Tensor] = {}
        self._samples = samples
        self._context, self._history, self._own_loader, self._folder = context, history, own_loader, folder
        self._rank_state: dict[str, Any] | None = None
        self._frozen: list[str] | None = None

    def rank_state(self, trainer: L.Trainer) -> dict[str, Any]:
        """The state that belongs to this rank alone."""
        state: dict[str, Any] = {"rng": capture_rng(), "running": capture_running(trainer)}
        loaders = loader_states(trainer) if self._own_loader else None
        return state if loaders is None else {**state, "loaders": loaders}

    def add_to(self, checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
        """Add the state that Lightning does not save to its checkpoint dictionary."""
        self.metrics |= {name: value for name, value in trainer.callback_metrics.items() if isinstance(value, Tensor)}
        checkpoint[KEY] = {
            "accumulate": trainer.accumulate_grad_batches,
            "metrics": dict(sorted(self.metrics.items())),
            "frozen": [name for name, parameter in _parameters(trainer) if not parameter.requires_grad],
        }

    def read(self, checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
        """Read the added state, and adapt what Lightning restores: another number of ranks has other micro-batches."""
        context, saved = self._context, checkpoint[KEY]
        self.metrics = dict(saved["metrics"])
        self._frozen = saved.get("frozen")  # None: an earlier version made it
        restore_callback_metrics(trainer, self.metrics)
        if trainer.is_global_zero and self._folder is not None:
            self._history.records[:] = read_history(self._folder)
        same_ranks = context.resume is not None and context.resume.world_size == context.world_size
        if self._folder is not None and same_ranks:
            self._rank_state = read_rank_state(self._folder, context.rank)
        loaders = (self._rank_state or {}).get("loaders")
        adapt_checkpoint(checkpoint, loaders, saved["accumulate"], trainer.accumulate_grad_batches)

    def begin(self, trainer: L.Trainer, fetcher: Any, batches_done: int) -> bool:
        """Restore this rank's state before the first step; returns whether the training is resumed.

        Raises CorruptError if the restored state, or the state that the training begins with, is not finite, and
        TrainwrightError if our loader does not stand where the checkpoint was made.
        """
        context = self._context
        if context.resume is not None:
            check_resumed(trainer, context.resume)
        elif context.init_from is not None and not all_finite(trainer.lightning_module):
            raise CorruptError(
                f"{context.init_from.uri}, which train.init_from names, holds weights that are not finite."
            )
        at = samples_done(trainer, context.train.global_batch_size)
        if not self._own_loader and at != self._samples:
            raise TrainwrightError(
                f"The loader of rank {context.rank} begins after {at:,} samples instead of {self._samples:,}, so the "
                "training would see other rows."
            )
        if self._folder is None or context.resume is None:
            # The same seed on all ranks made equal replicas; from here on each rank draws its own dropout masks, and
            # the first rank those that it would draw with Lightning alone.
            if context.rank:
                seed_rank(context.train.seed, 0, context.rank)
            return False
        self._freeze(trainer)
        # A loader without a position restarts its epoch, but Lightning has counted these batches already.
        replay_batches(trainer, fetcher, batches_done)
        if self._rank_state is None:
            seed_rank(context.train.seed, context.resume.step, context.rank)
        else:
            restore_rng(self._rank_state["rng"])
            restore_running(trainer, self._rank_state["running"])
        return True

    def _freeze(self, trainer: L.Trainer) -> None:
        """Freeze the parameters that were frozen, and no others: a hook may thaw some in an epoch that is not begun
        again.
        """
        for name, parameter in _parameters(trainer):
            if self._frozen is not None and parameter.requires_grad == (name in self._frozen):
                parameter.requires_grad_(name not in self._frozen)


def _parameters(trainer: L.Trainer) -> Iterator[tuple[str, nn.Parameter]]:
    return ((plain_name(name), parameter) for name, parameter in trainer.lightning_module.named_parameters())


def samples_done(trainer: L.Trainer, global_batch_size: int) -> int:
    """Samples of the training so far, over all ranks; where the loader is the user's, a batch of it on each rank counts
    as a global batch, however many optimizers step on it.
    """
    loader = loader_of(trainer)
    return batches_begun(trainer) * global_batch_size if loader is None else loader.samples


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
