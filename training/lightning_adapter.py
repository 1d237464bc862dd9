"""The only module that relies on Lightning's and torchmetrics' internals; all others use their documented interfaces.

Each docstring names the internals it relies on, and `tests/unit/training/test_lightning_adapter.py` has our assumptions
about them. Nothing is decided here: callers decide when to save, what to skip and how values are combined. Of
torchmetrics, it is the accumulated state that a metric's `state_dict` leaves out.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torchmetrics import Metric

_TASKS = ("Binary", "Multiclass", "Multilabel")
_SOFTMAX = {"MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss"}


class EpochLoop(_TrainingEpochLoop):
    """Lightning's loop over an epoch's micro-batches, with public hooks between them; `validation` replaces its own.

    Relies on `_TrainingEpochLoop` (`advance`, `_on_before_fetch`, `_on_after_fetch`, `_broadcast_sigterm_tensor`,
    `batch_progress`, `update_lr_schedulers`, `_num_ready_batches_reached`, `val_loop`, `on_load_checkpoint`), on
    `FitLoop.epoch_loop`, `FitLoop._restarting`, `FitLoop._combined_loader` and
    `FitLoop._combined_loader_states_to_load`, and on the fetcher's `done`.
    """

    def __init__(self, trainer: Trainer, validation: ValidationLoop | None = None) -> None:
        replaced = trainer.fit_loop.epoch_loop
        super().__init__(trainer, replaced.min_steps, replaced.max_steps)
        if validation is not None:
            self.val_loop = validation

    @property
    def batches_done(self) -> int:
        """Micro-batches of this epoch so far, including skipped ones."""
        return self.batch_progress.current.ready

    def before_batch(self, fetcher: Any) -> bool:
        """Called on every rank before each micro-batch is fetched; returns whether it is trained on."""
        return True

    def around_fetch(self, *, fetched: bool) -> None:
        """Called before a micro-batch is fetched, and again after the fetch."""

    def advance(self, data_fetcher: Any) -> None:
        """Take one micro-batch."""
        # If this stays set, Lightning validates twice, skips validation or skips a plateau scheduler's step at the end
        # of the resumed epoch. The outer loop's setter would set it again for training by steps.
        self.restarting = False
        self.trainer.fit_loop._restarting = False
        if self.before_batch(data_fetcher):
            super().advance(data_fetcher)
        else:
            self._pass_over(data_fetcher)

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Restore the loop, and let the loaders be set up again if a hook of the user's had them set up before."""
        super().on_load_checkpoint(state_dict)
        # Lightning gives loaders their positions only while it sets them up.
        if self.trainer.fit_loop._combined_loader_states_to_load:
            self.trainer.fit_loop._combined_loader = None

    def _pass_over(self, data_fetcher: Any) -> None:
        """Count a micro-batch and advance the schedules as usual, without calling a hook of the user's."""
        next(data_fetcher)
        progress = self.batch_progress
        progress.is_last_batch = data_fetcher.done
        for increment in (progress.increment_ready, progress.increment_started, progress.increment_processed):
            increment()
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        progress.increment_completed()

    def _broadcast_sigterm_tensor(self) -> None:
        # Lightning tells all ranks about a SIGTERM that rank 0 got; before_batch does so for any rank.
        return

    def _on_before_fetch(self) -> None:
        self.around_fetch(fetched=False)

    def _on_after_fetch(self) -> None:
        self.around_fetch(fetched=True)


class ViewedLoader(CombinedLoader):
    """A loader that the Trainer iterates, and the view of it that `Trainer.train_dataloader` shows to the user's code.

    Relies on `Trainer.train_dataloader` being `CombinedLoader.iterables`, and on the Trainer iterating `flattened`.
    """

    def __init__(self, loader: Any, view: Any) -> None:
        super().__init__(loader, "max_size_cycle")
        self.view = view

    @property
    def iterables(self) -> Any:
        """The view."""
        return self.view


@dataclass(frozen=True)
class LoggedValue:
    """The part of a per-epoch logged value that one rank has accumulated."""

    names: dict[str, list[str]]  # in the views `callback`, `logged` and `progress_bar`
    reduction: str  # `mean`, `sum`, `min` or `max`
    value: Tensor  # one number; for a mean the sum of value x rows
    rows: Tensor | None  # the weight of a mean; None for another reduction


class ValidationLoop(_EvaluationLoop):
    """Lightning's validation within a training, with a public hook where all ranks have reached the end.

    Relies on `_EvaluationLoop` (`_on_evaluation_epoch_end`, `_store_dataloader_outputs`, `_results`,
    `_logged_outputs`), on `_ResultCollection._forked_name`, and on `_ResultMetric` (`is_tensor`, `has_reset`, `meta`,
    `value`, `cumulated_batch_size`).
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)

    def share(self) -> None:
        """Called on every rank before and after the hooks of the epoch's end."""

    def logged_values(self) -> dict[str, LoggedValue]:
        """The values left to share, by key, without those that torchmetrics or `sync_dist` share themselves."""
        return {key: value for key, item in self._results.items() if (value := self._read(item)) is not None}

    def fix_value(self, key: str, value: Tensor) -> None:
        """Make Lightning take this as the result of a logged value; relies on `_ResultMetric._computed`."""
        self._results[key]._computed = value

    def publish(self, values: Sequence[tuple[Mapping[str, list[str]], Tensor]]) -> None:
        """Show values under their names in each view; relies on `_LoggerConnector._<view>_metrics`."""
        for names, value in values:
            for view, known_as in names.items():
                getattr(self.trainer._logger_connector, f"_{view}_metrics").update(dict.fromkeys(known_as, value))
        self._logged_outputs.insert(0, {name: value for names, value in values for name in names["logged"]})

    def _read(self, item: _ResultMetric) -> LoggedValue | None:
        sync = item.meta.sync
        if not item.is_tensor or not item.meta.on_epoch or item.has_reset or sync.should or sync.rank_zero_only:
            return None
        name, forked = self._results._forked_name(item, on_step=False)
        names = {
            "callback": [name, forked],
            "logged": [forked] if item.meta.logger else [],
            "progress_bar": [forked] if item.meta.prog_bar else [],
        }
        rows = item.cumulated_batch_size if item.meta.is_mean_reduction else None
        return LoggedValue(names, item.meta.reduce_fx.__name__, item.value, rows)

    def _store_dataloader_outputs(self) -> None:
        with _no_advice():
            super()._store_dataloader_outputs()

    def _on_evaluation_epoch_end(self) -> None:
        self.share()
        with _no_advice():
            super()._on_evaluation_epoch_end()
        # Again, for values that the hooks of the epoch's end logged; values already shared stay as they are.
        self.share()


class LazyOptimizerCLI(LightningCLI):
    """LightningCLI that leaves the config's optimizer to a hook; Lightning would make it at once.

    Relies on `LightningCLI._add_configure_optimizers_method_to_model`, called once the module is made.
    """

    def add_optimizer(self) -> None:
        """Called with the module made and `config_init` filled in."""

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        self.add_optimizer()


def install_epoch_loop(trainer: Trainer, loop: EpochLoop) -> None:
    """Use this loop, and keep the Trainer from handling signals; relies on `FitLoop.epoch_loop` and on
    `Trainer._signal_connector.register_signal_handlers`.
    """
    trainer.fit_loop.epoch_loop = loop
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]


def call_at_the_end(trainer: Trainer, finish: Callable[[], None]) -> None:
    """Call `finish` after the module's `on_train_end`, which may change weights; relies on the order of hooks."""
    trainer.strategy.on_train_end = finish  # type: ignore[method-assign]


def attach_loader(trainer: Trainer, module: LightningModule, loader: Any) -> None:
    """Give a Trainer that runs no loop a loader of training batches, whose length a module may ask for.

    Relies on `Trainer._data_connector.attach_data`, on `Trainer.state` and on `FitLoop.setup_data`.
    """
    trainer.strategy.connect(module)
    trainer._data_connector.attach_data(module, train_dataloaders=loader)
    trainer.state.fn = TrainerFn.FITTING
    trainer.fit_loop.setup_data()


def end_epoch_with_batch(trainer: Trainer) -> None:
    """Take the micro-batch that has just begun for the epoch's last; relies on `batch_progress.is_last_batch`."""
    trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True


def dump_checkpoint(trainer: Trainer, *, weights_only: bool = False) -> dict[str, Any]:
    """The checkpoint that Lightning would save now; relies on `Trainer._checkpoint_connector.dump_checkpoint`."""
    return trainer._checkpoint_connector.dump_checkpoint(weights_only=weights_only)


def prepare_data(trainer: Trainer) -> None:
    """Call `prepare_data` of module and data module on the ranks that Lightning calls it on; collective.

    Relies on `Trainer._data_connector`.
    """
    trainer._data_connector.prepare_data()


def place_in_training(trainer: Trainer, step: int, epochs: int) -> None:
    """Let `training`, `global_step` and `current_epoch` of a Trainer that runs no loop be those of a training.

    Relies on `Trainer.state`, `FitLoop.epoch_progress` and the optimizer's progress of `_AutomaticOptimization`.
    """
    trainer.state.fn, trainer.state.stage = TrainerFn.FITTING, RunningStage.TRAINING
    trainer.fit_loop.epoch_progress.current.completed = epochs
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step


def batches_begun(trainer: Trainer) -> int:
    """Micro-batches of the whole training so far; relies on `FitLoop.total_batch_idx`."""
    return trainer.fit_loop.total_batch_idx + 1


def loader_states(trainer: Trainer) -> list[Any] | None:
    """The positions of the loaders that have one; relies on `FitLoop._combined_loader` and its `_state_dicts`."""
    loaders = trainer.fit_loop._combined_loader
    return None if loaders is None else loaders._state_dicts()


def saved_positions(checkpoint: Mapping[str, Any]) -> list[Any]:
    """What `loader_states` returned when a checkpoint was made; relies on `loops.fit_loop.state_dict` in it."""
    return checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", [])


def replay_batches(trainer: Trainer, fetcher: Any, count: int) -> None:
    """Fetch batches again that Lightning has counted already, unless all loaders resume at their positions.

    Relies on `FitLoop._combined_loader`, its `flattened`, and `_DataFetcher.fetched`.
    """
    loaders = trainer.fit_loop._combined_loader
    assert loaders is not None, "the loop has set its loaders up"
    if count and not all(hasattr(loader, "load_state_dict") for loader in loaders.flattened):
        fetcher.fetched -= count
        for _ in range(count):
            next(fetcher)


def adapt_checkpoint(checkpoint: dict[str, Any], loaders: list[Any] | None, before: int, now: int) -> None:
    """Give a checkpoint these loader positions, and convert steps of `before` micro-batches to steps of `now`.

    Relies on `loops.fit_loop` in it: `state_dict.combined_loader`, and `total` and `current` (counts by name) of
    `epoch_loop.batch_progress`.
    """
    fit_loop = checkpoint["loops"]["fit_loop"]
    if loaders is not None:
        fit_loop["state_dict"]["combined_loader"] = loaders
    progress = fit_loop["epoch_loop.batch_progress"]
    for counts in (progress["total"], progress["current"]):
        counts.update({name: count // before * now for name, count in counts.items()})


def restore_callback_metrics(trainer: Trainer, metrics: Mapping[str, Tensor]) -> None:
    """Show callbacks and schedules these values; relies on `Trainer._logger_connector._callback_metrics`."""
    trainer._logger_connector._callback_metrics.update(metrics)


def weigh_logged_by(trainer: Trainer, num_rows: int) -> None:
    """Weigh the values logged in the current step by this number of rows; relies on `Trainer._results.batch_size`."""
    if trainer._results is not None:
        trainer._results.batch_size = num_rows


def capture_logged(trainer: Trainer) -> dict[str, dict[str, Tensor | list[Tensor]]]:
    """This rank's accumulated values of the epoch: key → name of a state → tensor.

    Relies on `_TrainingEpochLoop._results` and on `_ResultMetric` (`is_tensor`, `has_reset`, `meta.on_epoch`).
    """
    return {
        key: states_of(metric)
        for key, metric in trainer.fit_loop.epoch_loop._results.items()
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset
    }


def resume_logged(trainer: Trainer, accumulated: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the logged values continue from what `capture_logged` returned, on the training's device.

    Relies on `_ResultCollection`: `update_metrics` is called with each logged value, after its accumulator was made,
    and `reset` without arguments when an epoch ends.
    """
    results, waiting = trainer.fit_loop.epoch_loop._results, dict(accumulated)
    update = results.update_metrics

    def update_metrics(key: str, value: Any, batch_size: int) -> None:
        for name, state in waiting.pop(key, {}).items():
            setattr(results[key], name, state)
        update(key, value, batch_size)

    def reset(*args: Any, **kwargs: Any) -> None:
        # A whole reset ends the epoch: values that were not logged again since then do not belong to a later epoch.
        if not args and not kwargs:
            waiting.clear()
        _ResultCollection.reset(results, *args, **kwargs)

    results.update_metrics = update_metrics
    results.reset = reset  # type: ignore[method-assign]


def synchronises_batch_norm(strategy: ParallelStrategy) -> bool:
    """Whether the config has `sync_batchnorm: true`; relies on `ParallelStrategy._layer_sync`."""
    return strategy._layer_sync is not None


def is_restoring(frame: FrameSummary) -> bool:
    """Whether Lightning was restoring a checkpoint's state to the Trainer in this frame of a traceback.

    Relies on `_CheckpointConnector`, whose methods for it are `resume_start` and those named `restore…`.
    """
    named = frame.name == "resume_start" or frame.name.lstrip("_").startswith("restore_")
    return named and frame.filename == inspect.getfile(_CheckpointConnector)


@contextmanager
def _no_advice() -> Iterator[None]:
    """Suppress Lightning's advice to use `sync_dist`, which `ValidationLoop.share` replaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*sync_dist=True.*")
        yield


def states_of(metric: Metric) -> dict[str, Tensor | list[Tensor]]:
    """The accumulated states by name, tensors or lists of them; relies on `Metric._defaults`."""
    return {name: getattr(metric, name) for name in metric._defaults}


def update_count(metric: Metric) -> int:
    """How often the metric was updated since its last reset; relies on `Metric._update_count`."""
    return metric._update_count


def restore_states(metric: Metric, states: Mapping[str, Any], count: int) -> None:
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


def _task_classes(metric: Metric) -> set[str]:
    """The names of torchmetrics' classes for one task that the metric's class is, or is derived from."""
    return {one.__name__ for one in type(metric).__mro__ if one.__module__.startswith("torchmetrics.classification.")}
