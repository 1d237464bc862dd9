"""From the spec's Lightning config to objects: module, data module and Trainer, as LightningCLI would build them.

The one way to make a module ready. The spec's own settings (strategy, devices, accumulation, sampler, checkpointing)
are inserted here; the config is never changed on disk, and nothing is run. `call_forward` decides which entries of a
batch the `forward` of a module without a predict_step gets.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import lightning as L
import torch
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningCLI, instantiate_class
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import default_collate

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.pipeline_spec import BatchTransform
from data_contracts.quoting import describe, withhold
from infra.gang.rank_files import SCRATCH
from training.lightning_adapter import LazyOptimizerCLI, prepare_data
from training.order import Plan
from training.user.imports import (
    add_project,
    load_callable,
    load_class,
    raised_in_project,
    user_code,
    user_traceback,
)

DATASET = "${dataset.path}"
# Settings that a gang does not need; the config may override them.
_DEFAULTS: dict[str, int] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 10,  # with Lightning's 50, a short training has no curve
}
_REMEDY = "Correct it in the Lightning config."
# Warnings that say nothing to a user here.
_IGNORED = (
    ".*does not have many workers.*",
    ".*is smaller than the logging interval.*",
    ".*litlogger.*",
    "LightningCLI's args parameter is intended.*",  # the command line of a child is ours
    ".*treespec, LeafSpec.*",  # Lightning's own use of a class of torch's, in each rank of each generation
)
# What the module of a Trainer that does not train may ask it, or depends on.
_PLAIN = (
    "accelerator",
    "precision",
    "deterministic",
    "inference_mode",
    "max_epochs",
    "min_epochs",
    "max_steps",
    "min_steps",
    "gradient_clip_val",
    "gradient_clip_algorithm",
)
_STAGES = {
    "fit": RunningStage.TRAINING,
    "validate": RunningStage.VALIDATING,
    "test": RunningStage.TESTING,
    "predict": RunningStage.PREDICTING,
}
_TRUE = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64, "64": torch.float64}


def build_module(
    train: Mapping[str, Any],
    project: Path,
    dataset_path: str = "",
    *,
    optimizer: bool = False,
    load: Callable[[LightningModule], object] | None = None,
) -> LightningModule:
    """The module that a spec names, as its constructor makes it; a Trainer or `make_ready` does the rest.

    At the end of its `configure_model` it is given the type of a `-true` precision and then its weights, so that no
    hook of its own replaces them.

    Args:
        train: TrainSpec as JSON with `lightning` inlined.
        project: root of the user's unpacked code; goes to the front of `sys.path`.
        optimizer: whether it gets the optimizer and schedule that the config may name.
        load: loads its weights.

    Raises:
        UsageError: the class is not found or is not a LightningModule, or its arguments do not fit.
        UserCodeError: the user's code raised.
    """
    parts = ("model", "optimizer", "lr_scheduler") if optimizer else ("model",)
    config = {key: value for key, value in _config(train, dataset_path).items() if key in parts}
    module = _assemble(train, config, project).model
    # A Trainer would convert it only when it runs, and weights of another type do not fit.
    dtype = true_type(train["lightning"].get("trainer") or {})

    def finish(module: LightningModule) -> None:
        if dtype is not None and not _has_type(module, dtype):
            module.to(dtype)
        if load is not None:
            load(module)

    after_configuring(module, finish)
    return module


def true_type(trainer: Mapping[str, Any]) -> torch.dtype | None:
    """The type that a `-true` precision of a Trainer's config gives all floats; None for another precision."""
    return _TRUE.get(str(trainer.get("precision")))


def after_configuring(module: LightningModule, work: Callable[[LightningModule], object]) -> None:
    """Make a module's `configure_model`, the last hook before weights are restored, do further work at its end."""
    configured = module.configure_model

    def configure_model(module: LightningModule) -> None:
        configured()
        work(module)

    module.configure_model = MethodType(configure_model, module)  # type: ignore[method-assign]


def make_ready(
    module: LightningModule,
    trainer: Trainer,
    stage: str,
    project: Path,
    datamodule: LightningDataModule | None = None,
    *,
    prepared: bool = False,
) -> None:
    """Call a module's hooks up to its weights, in a Trainer's order, for work that no loop of the Trainer does.

    Args:
        stage: `fit`, `validate`, `test` or `predict`.
        datamodule: the user's, which the module's `setup` may ask.
        prepared: whether `prepare_data` was called already.

    Raises: UserCodeError if a hook raises.
    """
    parts: list[LightningModule | LightningDataModule] = [module] if datamodule is None else [datamodule, module]
    trainer.state.fn, trainer.state.stage = TrainerFn(stage), _STAGES[stage]
    trainer.datamodule = datamodule  # type: ignore[attr-defined]
    for part in parts:
        part.trainer = trainer
    trainer.strategy.connect(module)
    trainer.strategy.setup_environment()
    with user_code("the module's setup", project.resolve()):
        if not prepared:
            prepare_data(trainer)
        for part in parts:
            part.setup(stage=trainer.state.fn)
    with user_code("the module's configure_model", project.resolve()):
        module.configure_model()


def _has_type(module: LightningModule, dtype: torch.dtype) -> bool:
    """Whether all floats of a module have a type already."""
    floats = (one for one in [*module.parameters(), *module.buffers()] if one.is_floating_point())
    return all(one.dtype == dtype for one in floats)


def build_datamodule(train: Mapping[str, Any], project: Path, dataset_path: str = "") -> LightningDataModule | None:
    """The user's data module with `${dataset.path}` filled in; None if the config has no `data`. Errors as above."""
    config = {key: value for key, value in _config(train, dataset_path).items() if key in ("model", "data")}
    if not config.get("data"):
        return None
    return _assemble(train, config, project).datamodule


def datamodule_of(
    module: LightningModule, train: Mapping[str, Any], project: Path, dataset_path: str
) -> LightningDataModule | None:
    """The user's data module, for a module whose `setup` may ask it; None where there is none to ask."""
    asks = is_overridden("setup", module, LightningModule)
    return build_datamodule(train, project, dataset_path) if asks else None


def build_all(
    train: Mapping[str, Any], project: Path, dataset_path: str, owned: Mapping[str, Any], callbacks: Sequence[Callback]
) -> tuple[LightningModule, LightningDataModule | None, Trainer]:
    """Module, data module and Trainer for training; errors as in `build_module`.

    Args:
        owned: Trainer arguments that the spec decides.
        callbacks: ours, put after the user's.
    """
    built = _assemble(train, _config(train, dataset_path), project, (owned, list(callbacks)))
    return built.model, built.datamodule, built.trainer


def in_micro_batches(trainer: Mapping[str, Any], plan: Plan) -> dict[str, int]:
    """`limit_train_batches` and `val_check_interval` of a config, in the micro-batches that Lightning counts.

    In a config they are numbers of global batches, or shares. How many micro-batches make up a global batch depends on
    the machine, and an epoch or a validation must not divide a global batch.
    """
    found = {}
    steps = plan.steps_per_epoch
    limit = _batches(trainer.get("limit_train_batches"), steps)
    if limit is not None:
        steps = min(limit, steps)
        found["limit_train_batches"] = steps * plan.accumulate
    interval = _batches(trainer.get("val_check_interval"), steps)
    if interval is not None:
        found["val_check_interval"] = max(1, interval) * plan.accumulate
    return found


def _batches(value: Any, of: int) -> int | None:
    """A number of batches or a share of them, as a number; None for all, and for a value that is not such a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    if isinstance(value, int) or value > 1:
        return int(value) if value % 1 == 0 else None
    return int(value * of) if value < 1 else None


def plain_trainer(
    train: Mapping[str, Any], callbacks: Sequence[Callback], ranks: Mapping[str, Any] | None = None
) -> Trainer:
    """A Trainer that writes nothing, with the config's precision.

    Args:
        ranks: arguments that place it among devices or ranks and replace the config's; default: one device.
    """
    config = _config(train, "").get("trainer") or {}
    chosen = {key: config[key] for key in _PLAIN if config.get(key) is not None}
    silence()
    placed = {"devices": 1} if ranks is None else dict(ranks)
    # A child process has a folder of its own for temporary files, and so has a rank.
    folder = os.environ.get(SCRATCH) or os.environ.get("TMPDIR") or os.getcwd()
    # A module that logs by `self.logger` must not fail on the first rank alone, as it would without a logger.
    mute = {"logger": Mute(folder), "enable_checkpointing": False, "default_root_dir": folder}
    return Trainer(**{**chosen, **_DEFAULTS, **placed, **mute}, callbacks=list(callbacks))


class Mute(DummyLogger):
    """A logger that keeps nothing, and answers for the folder that a module may write further files into."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    @property
    def save_dir(self) -> str:
        """The folder."""
        return self._folder

    log_dir = root_dir = save_dir


def batch_transform(train: Mapping[str, Any], project: Path) -> Callable[[Any], Any] | None:
    """The user's `train.transform` with its arguments bound; None if there is none. Errors as in `load_callable`."""
    if train.get("transform") is None:
        return None
    wanted = BatchTransform.model_validate(train["transform"])
    call = load_callable(wanted.call, wanted.args, "train.transform", add_project(project))
    return call if wanted.per == "batch" else functools.partial(_each_sample, call)


def _each_sample(call: Callable[[Any], Any], batch: Any) -> Any:
    """The batch made of the user's function applied to each sample."""
    values = list(batch.values()) if isinstance(batch, dict) else batch
    samples = zip(*values, strict=True)
    if isinstance(batch, dict):
        return default_collate([call(dict(zip(batch, sample, strict=True))) for sample in samples])
    return default_collate([call(sample) for sample in samples])


def silence() -> None:
    """Keep Lightning's banners and tips out of the logs, but not its warnings."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in _IGNORED:
        warnings.filterwarnings("ignore", message=message)


class _Assembly(LazyOptimizerCLI):
    """LightningCLI without a command line: it instantiates and does nothing else."""

    def __init__(self, config: dict[str, Any], trainer: tuple[Mapping[str, object], list[Callback]] | None) -> None:
        self._given = trainer
        super().__init__(
            save_config_callback=None,
            trainer_defaults=_DEFAULTS,
            parser_kwargs={"exit_on_error": False},
            args=config,
            run=False,
        )

    def instantiate_trainer(self, **_: Any) -> Any:
        """A Trainer with the config's settings overridden by ours, and the user's callbacks and loggers before ours."""
        if self._given is None:
            return None
        owned, callbacks = self._given
        theirs = dict(self.config_init.get("trainer", {}))
        # The first of them is `self.logger`. Lightning makes a CSVLogger of `true` where no TensorBoard is installed.
        logger = theirs.get("logger") or None
        named = [CSVLogger("lightning_logs", name="")] if logger is True else _listed(logger)
        loggers = [*named, *_listed(owned.get("logger"))]
        # With a progress bar of the user's, Lightning insists on showing it.
        wanted = [one for one in _listed(theirs.get("callbacks")) if not isinstance(one, ProgressBar)]
        both = {"logger": loggers, "callbacks": [*wanted, *callbacks], "enable_progress_bar": False}
        return Trainer(**{**theirs, **owned, **both})

    def add_optimizer(self) -> None:
        """Make the config's optimizer only when it is asked for: configure_model or sharding replace parameters."""
        optimizer, scheduler = self.config_init.get("optimizer"), self.config_init.get("lr_scheduler")
        if not optimizer:
            return

        def configure_optimizers(module: LightningModule) -> Any:
            made = instantiate_class(module.parameters(), _plain(optimizer))
            plan = instantiate_class(made, _plain(scheduler)) if scheduler else None
            return LightningCLI.configure_optimizers(module, made, plan)

        self.model.configure_optimizers = MethodType(configure_optimizers, self.model)


def _assemble(
    train: Mapping[str, Any],
    config: Mapping[str, Any],
    project: Path,
    trainer: tuple[Mapping[str, object], list[Callback]] | None = None,
) -> _Assembly:
    silence()
    root = add_project(project)
    for part, base in (("model", LightningModule), ("data", LightningDataModule)):
        if config.get(part):
            load_class(config[part]["class_path"], base, f"train.lightning: {part}.class_path", root)
    try:
        return _Assembly({**config, "seed_everything": train.get("seed", 0)}, trainer)
    except (TrainwrightError, KeyboardInterrupt):
        raise
    except ArgumentError as error:
        said = _sentence(str(error))
        if _raised_by_user(error, root) is not None:
            said = withhold(said, "the module's own code refuses its arguments")
        raise UsageError(f"train.lightning: {said}.", remedy=_REMEDY) from error
    except BaseException as error:
        theirs = _raised_by_user(error, root)
        if theirs is not None:
            raise UserCodeError(
                f"The Lightning config could not be built: {describe(theirs, root)}.",
                user_traceback=user_traceback(theirs, root),
            ) from error
        if isinstance(error, MisconfigurationException | TypeError | ValueError):
            raise UsageError(f"train.lightning: {describe(error)}.", remedy=_REMEDY) from error
        raise


def _raised_by_user(error: BaseException, root: Path) -> BaseException | None:
    """The exception in the chain that the user's code raised: jsonargparse wraps it in its own exception."""
    link: BaseException | None = error
    while link is not None and not raised_in_project(link, root):
        link = link.__cause__ or link.__context__
    return link


def _sentence(report: str) -> str:
    """The field and the reason in jsonargparse's report, which lists every type that does not fit the value."""
    keys = re.findall(r'Parser key "([^"]+)":', report)
    lines = [line.strip(" -") for line in report.splitlines()]
    noise = ("Parser key", "Does not", "Subtypes", "Errors", "Problem with given class", "Given value", "Expected a")
    reasons = [line for line in lines if line and not line.startswith(noise)]
    expected = [line.rstrip(".") for line in lines if line.startswith("Expected a") and "NoneType" not in line]
    reason = (reasons or [" or ".join(expected)])[0].rstrip(".:")
    return f"{'.'.join(keys)}: {reason}" if keys else reason


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> dict[str, Any]:
    return value.as_dict() if isinstance(value, Namespace) else dict(value)


def _config(train: Mapping[str, Any], dataset_path: str) -> dict[str, Any]:
    return _filled(dict(train["lightning"]), dataset_path)


def _filled(value: Any, dataset_path: str) -> Any:
    """`value` with `${dataset.path}` replaced in every text."""
    if isinstance(value, str):
        return value.replace(DATASET, dataset_path)
    if isinstance(value, dict):
        return {key: _filled(item, dataset_path) for key, item in value.items()}
    return [_filled(item, dataset_path) for item in value] if isinstance(value, list) else value


def call_forward(module: L.LightningModule, batch: Any, targets: Collection[str | None], columns: Any) -> Any:
    """What a module without its own predict_step returns for a batch; UsageError as in `match_forward`.

    Args:
        targets: entries that are the truth; columns: the spec's `train.batch`.
    """
    keyed = isinstance(batch, dict)
    if not keyed and not isinstance(batch, tuple | list):
        return module(batch)
    names = [str(key) for key in batch] if keyed else [""] * len(batch)
    if not keyed and isinstance(columns, list) and len(columns) == len(batch):
        names = entry_names(columns)
    values = list(batch.values()) if keyed else batch
    matched = match_forward(module.forward, names, targets, keyed=keyed)
    if matched is None:
        return module({key: value for key, value in batch.items() if key not in targets})
    return module(*[values[at] for at in matched[0]], **{name: values[at] for name, at in matched[1].items()})


def entry_names(batch: Mapping[str, Any] | Sequence[Any]) -> list[str]:
    """The names of a batch's entries by `train.batch`; "" for columns that are stacked in a tuple."""
    return list(batch) if isinstance(batch, Mapping) else [one if isinstance(one, str) else "" for one in batch]


def match_forward(
    forward: Callable[..., Any], names: Sequence[str], targets: Collection[str | None], *, keyed: bool
) -> tuple[list[int], dict[str, int]] | None:
    """Which entries of a batch `forward` gets: those by position, and by parameter. None: the dictionary without truth.

    Entries go to the parameters of their names. Those that are left go to the required parameters that are left if
    there are equally many, in the order of a tuple. A single parameter gets a tuple's first entry or the dictionary.

    Args:
        forward: a bound method.
        names: of the batch's entries; keyed: whether it is a dictionary.
        targets: names or positions of entries that are the truth.

    Raises: UsageError if it is in doubt.
    """
    parameters = inspect.signature(forward).parameters
    named = [one for one in parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    truth = set(targets)
    places = [{name} if keyed else {name, f"{at}", f"{at - len(names)}"} for at, name in enumerate(names)]
    left = [at for at, called in enumerate(places) if not called & truth]
    found = {one.name: at for one in named for at in left if names[at] == one.name}
    missing = [one.name for one in named if one.default is one.empty and one.name not in found]
    spare = [at for at in left if at not in found.values()]
    if not found and not missing:  # all are optional, or there are none
        missing = [one.name for one in named[:1]]
    if not named and not keyed:
        return left, {}
    if not named and any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return [], {names[at]: at for at in left}
    optional = [one.name for one in named if one.name not in {*found, *missing}]
    if len(missing) <= 1 and not found:
        if keyed:
            return (left, {}) if len(left) == 1 else None
        if len(left) == 1 or not optional or not any(truth):
            return left[:1], {}
    elif not missing and (keyed or not spare or not optional):
        return [], found
    if len(missing) == len(spare) > 0 and (not keyed or len(spare) == 1):
        return [], {**found, **dict(zip(missing, spare, strict=True))}
    entries = ", ".join(names[at] or f"number {at}" for at in left)
    raise UsageError(
        f"train.batch: forward takes {', '.join(one.name for one in named)}, and it is in doubt which of them get the "
        f"entries of a batch ({entries}).",
        remedy="Give the entries the names of the parameters, or write a predict_step(batch, batch_idx).",
    )
