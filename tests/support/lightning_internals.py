"""What we rely on inside Lightning and torchmetrics: a table that is held against whichever versions are installed.

`tests/unit/training/test_lightning_adapter.py` runs it. No internal is imported here before its own line of the table
looks for it, so that a version which lacks one fails that line and no other.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
import torchmetrics

from tests.support.lightning_training import Batches, Seen, observed

_LOOPS = "lightning.pytorch.loops"
_CONNECTORS = "lightning.pytorch.trainer.connectors"
EPOCH_LOOP = f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop"
EVALUATION_LOOP = f"{_LOOPS}.evaluation_loop._EvaluationLoop"
FETCHER = f"{_LOOPS}.fetchers._PrefetchDataFetcher"
COLLECTION = f"{_CONNECTORS}.logger_connector.result._ResultCollection"

CHECKPOINTS = f"{_CONNECTORS}.checkpoint_connector._CheckpointConnector"


def internal(path: str) -> Any:
    """The class or function of that dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def takes(path: str, method: str, *parameters: str) -> bool:
    """Whether a method has these parameters, in this order, and demands no others."""
    found = inspect.signature(getattr(internal(path), method)).parameters
    demanded = [name for name, one in found.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return list(found)[1 : len(parameters) + 1] == list(parameters) and set(demanded) <= {"self", *parameters}


@dataclass(frozen=True)
class Internal:
    """One line of the table.

    Attributes:
        name: what we rely on, after the class that has it.
        assumed: what we assume of it.
        holds: whether that is so.
    """

    name: str
    assumed: str
    holds: Callable[[Seen], Any]

    def __str__(self) -> str:
        return self.name

    def fault(self, seen: Callable[[], Seen] = observed) -> str:
        """What changed, in one sentence; "" where the assumption holds."""
        try:
            if self.holds(seen()):
                return ""
            why = ""
        except Exception as error:
            why = f" ({type(error).__name__}: {error})"
        return (
            f"{_version(self.name)} has changed {self.name}: it is no longer so that {self.assumed}{why}; "
            "adapt training.lightning_adapter."
        )


def _version(name: str) -> str:
    metrics = name.startswith("Metric.")
    return f"torchmetrics {torchmetrics.__version__}" if metrics else f"Lightning {L.__version__}"


def _metric(**state: Any) -> torchmetrics.Metric:
    metric = torchmetrics.MeanMetric()
    metric(torch.tensor([1.0, 3.0]))
    vars(metric).update(state)
    return metric


def _result(seen: Seen) -> Any:
    return seen.trainer.fit_loop.epoch_loop._results["training_step.ones"]


def _fit_loop(seen: Seen) -> dict[str, Any]:
    return seen.checkpoint["loops"]["fit_loop"]


def _settable(owner: Any, name: str) -> bool:
    return name in vars(owner)


def _names(owner: Any) -> set[str]:
    return {name for name, _ in inspect.getmembers(owner, callable)}


def optimizer_steps(trainer: L.Trainer) -> int:
    """The steps that the epoch loop's optimization counts."""
    return trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed


INTERNALS = [
    Internal("FitLoop.epoch_loop", "it is an attribute that may be replaced by another _TrainingEpochLoop",
             lambda s: _settable(s.trainer.fit_loop, "epoch_loop")
             and isinstance(s.trainer.fit_loop.epoch_loop, internal(EPOCH_LOOP))),
    Internal("FitLoop._restarting", "it is an attribute of its own beside the property `restarting`",
             lambda s: s.trainer.fit_loop._restarting is False and _settable(s.trainer.fit_loop, "_restarting")),
    Internal("FitLoop._combined_loader", "it holds the loaders as `flattened` while training",
             lambda s: isinstance(s.loaders.flattened[0], Batches)),
    Internal("Trainer.train_dataloader", "it shows a CombinedLoader's `iterables`, while `flattened` is iterated",
             lambda s: s.trainer.train_dataloader is s.loaders.iterables
             and "self.flattened" in inspect.getsource(type(s.loaders).__iter__)),
    Internal("CombinedLoader._state_dicts", "it returns the positions of the loaders that have one, in order",
             lambda s: s.loaders._state_dicts() == [{"at": 7}]),
    Internal("FitLoop._combined_loader_states_to_load", "it has the loaders' positions until the loaders are set up",
             lambda s: s.trainer.fit_loop._combined_loader_states_to_load == []
             and "self._load_combined_loader_states()" in inspect.getsource(type(s.trainer.fit_loop).setup_data)
             and "_combined_loader is not None" in inspect.getsource(type(s.trainer.fit_loop).setup_data)),
    Internal("FitLoop.epoch_progress", "`current.completed` counts the epochs that were trained to their end",
             lambda s: s.trainer.fit_loop.epoch_progress.current.completed == 1),
    Internal("FitLoop.total_batch_idx", "it is the number, from 0, of the last micro-batch of all epochs",
             lambda s: s.trainer.fit_loop.total_batch_idx == 1),
    Internal("Trainer.global_step", "it is `optim_progress.optimizer.step.total.completed` of automatic_optimization",
             lambda s: optimizer_steps(s.trainer) == s.trainer.global_step > 0),
    Internal("_TrainingEpochLoop.__init__", "it takes trainer, min_steps and max_steps",
             lambda s: takes(EPOCH_LOOP, "__init__", "trainer", "min_steps", "max_steps")),
    Internal("_TrainingEpochLoop.advance", "it takes one micro-batch from the fetcher that it is given",
             lambda s: takes(EPOCH_LOOP, "advance", "data_fetcher")),
    Internal("_TrainingEpochLoop._on_before_fetch", "the fetcher calls it, without arguments, before each fetch",
             lambda s: takes(EPOCH_LOOP, "_on_before_fetch")
             and "_start_profiler = self._on_before_fetch" in inspect.getsource(internal(EPOCH_LOOP))),
    Internal("_TrainingEpochLoop._on_after_fetch", "the fetcher calls it, without arguments, after each fetch",
             lambda s: takes(EPOCH_LOOP, "_on_after_fetch")
             and "_stop_profiler = self._on_after_fetch" in inspect.getsource(internal(EPOCH_LOOP))),
    Internal("_TrainingEpochLoop._broadcast_sigterm_tensor", "`advance` calls it, and it only shares rank 0's SIGTERM",
             lambda s: takes(EPOCH_LOOP, "_broadcast_sigterm_tensor")
             and "self._broadcast_sigterm_tensor()" in inspect.getsource(internal(EPOCH_LOOP).advance)),
    Internal("_TrainingEpochLoop.batch_progress", "it counts micro-batches as ready, started, processed and completed",
             lambda s: vars(s.trainer.fit_loop.epoch_loop.batch_progress.current)
             == dict.fromkeys(("ready", "completed", "started", "processed"), 2)),
    Internal("_TrainingEpochLoop.update_lr_schedulers", "it takes interval and update_plateau_schedulers",
             lambda s: takes(EPOCH_LOOP, "update_lr_schedulers", "interval", "update_plateau_schedulers")),
    Internal("_TrainingEpochLoop._num_ready_batches_reached", "it says whether the epoch's last batch is ready",
             lambda s: s.trainer.fit_loop.epoch_loop._num_ready_batches_reached() is True),
    Internal("_TrainingEpochLoop.val_loop", "it is an attribute that may be replaced by another _EvaluationLoop",
             lambda s: _settable(s.trainer.fit_loop.epoch_loop, "val_loop")
             and isinstance(s.trainer.fit_loop.epoch_loop.val_loop, internal(EVALUATION_LOOP))),
    Internal("_TrainingEpochLoop._results", "it holds what was logged in the epoch, by `training_step.<name>`",
             lambda s: list(s.trainer.fit_loop.epoch_loop._results) == ["training_step.ones"]),
    Internal("_Loop.restarting", "setting it on a loop sets it on the loops within",
             lambda s: "loop.restarting = restarting" in inspect.getsource(internal(f"{_LOOPS}.loop._Loop"))),
    Internal("_DataFetcher.fetched", "it counts what was fetched, and `done` is set with the last batch",
             lambda s: {"fetched": 0, "done": False}.items() <= vars(internal(FETCHER)()).items()),
    Internal("_EvaluationLoop.__init__", "it takes trainer, trainer_fn, stage, verbose and inference_mode",
             lambda s: takes(EVALUATION_LOOP, "__init__", "trainer", "trainer_fn", "stage", "verbose",
                             "inference_mode")),
    Internal("_EvaluationLoop._on_evaluation_epoch_end", "it calls the hooks of the epoch's end, without arguments",
             lambda s: takes(EVALUATION_LOOP, "_on_evaluation_epoch_end")
             and "_epoch_end" in inspect.getsource(internal(EVALUATION_LOOP)._on_evaluation_epoch_end)),
    Internal("_EvaluationLoop._store_dataloader_outputs", "it reads what a loader's batches logged",
             lambda s: takes(EVALUATION_LOOP, "_store_dataloader_outputs")),
    Internal("_EvaluationLoop._results", "it holds what was logged in the validation, by `validation_step.<name>`",
             lambda s: list(s.validation) == ["validation_step.val"]),
    Internal("_EvaluationLoop._logged_outputs", "it is a list of dictionaries for the loggers",
             lambda s: s.trainer.fit_loop.epoch_loop.val_loop._logged_outputs == []),
    Internal("_ResultCollection._forked_name", "it gives a value's name, and the one with `_step` or `_epoch`",
             lambda s: s.trainer.fit_loop.epoch_loop._results._forked_name(_result(s), on_step=False)
             == ("ones", "ones_epoch")),
    Internal("_ResultCollection.update_metrics", "`log` calls it for each value, once its accumulator is there",
             lambda s: takes(COLLECTION, "update_metrics", "key", "value", "batch_size")
             and inspect.getsource(internal(COLLECTION).log).rstrip().endswith(
                 "self.update_metrics(key, value, batch_size)")),
    Internal("_ResultCollection.reset", "it takes metrics and fx, and without them ends the epoch",
             lambda s: takes(COLLECTION, "reset", "metrics", "fx")),
    Internal("_ResultCollection.batch_size", "it weighs what the current step logs",
             lambda s: s.batch_size == 3),
    Internal("_ResultMetric.value", "of a mean it is the sum of value x rows, and `cumulated_batch_size` the rows",
             lambda s: {"value": 3, "cumulated_batch_size": 3, "is_tensor": True, "has_reset": False}.items()
             <= s.step["training_step.ones"].items()),
    Internal("_ResultMetric.meta", "it says how a value is logged, reduced and shared",
             lambda s: (lambda m: (m.on_epoch, m.logger, m.prog_bar, m.is_mean_reduction, m.reduce_fx.__name__,
                                   m.sync.should, m.sync.rank_zero_only))(_result(s).meta)
             == (True, True, True, True, "mean", False, False)),
    Internal("_ResultMetric._computed", "a value there is taken for the result",
             lambda s: "result_metric._computed is None" in inspect.getsource(internal(COLLECTION)._get_cache)),
    Internal("Trainer._results", "it is what the running loop logs into",
             lambda s: s.active is s.trainer.fit_loop.epoch_loop._results),
    Internal("Trainer._logger_connector", "its views of what was logged are dictionaries that may be added to",
             lambda s: all(isinstance(getattr(s.trainer._logger_connector, f"_{view}_metrics"), dict)
                           for view in ("callback", "logged", "progress_bar"))
             and {"ones", "ones_epoch", "val"} <= s.trainer._logger_connector._callback_metrics.keys()),
    Internal("_LoggerConnector._callback_metrics", "`Trainer.callback_metrics` is that dictionary",
             lambda s: s.trainer.callback_metrics is s.trainer._logger_connector._callback_metrics),
    Internal("Trainer._data_connector", "`prepare_data`, without arguments, calls the hooks of that name",
             lambda s: "_data_connector.prepare_data()" in inspect.getsource(type(s.trainer)._run)
             and list(inspect.signature(s.trainer._data_connector.prepare_data).parameters) == []),
    Internal("Trainer._signal_connector", "`register_signal_handlers`, without arguments, is where it begins with them",
             lambda s: callable(s.trainer._signal_connector.register_signal_handlers)
             and "_signal_connector.register_signal_handlers()" in inspect.getsource(type(s.trainer)._run)),
    Internal("Trainer._checkpoint_connector", "`dump_checkpoint` returns what is saved, with loops and optimizers",
             lambda s: {"state_dict", "loops", "optimizer_states", "lr_schedulers", "epoch", "global_step"}
             <= s.checkpoint.keys()),
    Internal("_CheckpointConnector", "it restores in `resume_start` and in methods named `restore_…`",
             lambda s: {"resume_start", "restore_training_state", "restore_optimizers", "restore_loops",
                        "_restore_modules_and_callbacks"} <= _names(internal(CHECKPOINTS))),
    Internal("checkpoint.loops.fit_loop.state_dict", "`combined_loader` in it has the loaders' positions",
             lambda s: _fit_loop(s)["state_dict"]["combined_loader"] == [{"at": 7}]),
    Internal("checkpoint.loops.fit_loop.epoch_loop.batch_progress", "`total` and `current` are counts by name",
             lambda s: all(isinstance(count, int) for part in ("total", "current")
                           for count in _fit_loop(s)["epoch_loop.batch_progress"][part].values())),
    Internal("ParallelStrategy._layer_sync", "it is None, or what `setup` synchronises batch norms by",
             lambda s: L.pytorch.strategies.DDPStrategy()._layer_sync is None
             and "self._layer_sync.apply(" in inspect.getsource(L.pytorch.strategies.DDPStrategy.setup)),
    Internal("Strategy.on_train_end", "it is called last, after the callbacks' and the module's",
             lambda s: s.order == ["callback", "module", "strategy"]),
    Internal("LightningCLI._add_configure_optimizers_method_to_model", "it is called once the module is made",
             lambda s: takes("lightning.pytorch.cli.LightningCLI", "_add_configure_optimizers_method_to_model",
                             "subcommand")),
    Internal("Metric._defaults", "it has the accumulated states by name, a list for those that keep rows",
             lambda s: {*_metric()._defaults} == {"mean_value", "weight"}
             and isinstance(torchmetrics.CatMetric()._defaults["value"], list)),
    Internal("Metric._update_count", "it counts the updates since the last reset",
             lambda s: _metric()._update_count == 1 and torchmetrics.MeanMetric()._update_count == 0),
    Internal("Metric._computed", "a value there is taken for the result, None for none",
             lambda s: (_metric(_computed=torch.tensor(5.0)).compute(), _metric(_computed=None).compute()) == (5, 2)),
    Internal("Metric._forward_cache", "it has the value on the last batch",
             lambda s: _metric()._forward_cache == 2),
]  # fmt: skip
