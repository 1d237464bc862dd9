"""From the spec's Lightning config to objects: module, data module and Trainer, as LightningCLI would build them.

The spec's own settings (strategy, devices, accumulation, sampler, checkpointing) are put in here; the config is never
changed on disk and nothing is run.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any

from jsonargparse import ArgumentError, Namespace
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI, instantiate_class
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import default_collate

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.spec import BatchTransform
from training.plan import Plan
from training.user_code import (
    add_project,
    describe,
    load_callable,
    load_class,
    raised_in_project,
    user_code,
    user_traceback,
)

DATASET = "${dataset.path}"
# What a gang has no use for; the config may say otherwise.
_DEFAULTS: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 10,  # Lightning's 50 leaves a short training without a curve
}
_REMEDY = "Correct it in the Lightning config."
_PLAIN = ("accelerator", "precision", "deterministic")


def build_module(
    train: Mapping[str, Any], project: Path, dataset_path: str = "", *, optimizer: bool = False
) -> LightningModule:
    """The untrained module that a spec names, with all its layers.

    Args:
        train: TrainSpec as JSON with `lightning` inlined.
        project: root of the user's unpacked code; goes to the front of `sys.path`.
        optimizer: whether it is given the optimizer and schedule that the config may name.

    Raises:
        UsageError: the class is not found or no LightningModule, or its arguments do not fit.
        UserCodeError: the user's code raised.
    """
    parts = ("model", "optimizer", "lr_scheduler") if optimizer else ("model",)
    config = {key: value for key, value in _config(train, dataset_path).items() if key in parts}
    module = _assemble(train, config, project).model
    with user_code("the module's configure_model", project.resolve()):
        module.configure_model()
    # A Trainer calls it again, by when the weights are loaded.
    module.configure_model = lambda: None
    return module


def build_datamodule(train: Mapping[str, Any], project: Path, dataset_path: str = "") -> LightningDataModule | None:
    """The user's data module with `${dataset.path}` filled in, None if the config has no `data`; errors as above."""
    config = {key: value for key, value in _config(train, dataset_path).items() if key in ("model", "data")}
    if not config.get("data"):
        return None
    return _assemble(train, config, project).datamodule


def build_all(
    train: Mapping[str, Any], project: Path, dataset_path: str, owned: Mapping[str, Any], callbacks: Sequence[Callback]
) -> tuple[LightningModule, LightningDataModule | None, Trainer]:
    """Module, data module and Trainer for training; errors as `build_module`.

    Args:
        owned: Trainer arguments that the spec decides.
        callbacks: ours, put after the user's.
    """
    built = _assemble(train, _config(train, dataset_path), project, (dict(owned), list(callbacks)))
    return built.model, built.datamodule, built.trainer


def in_micro_batches(trainer: Mapping[str, Any], plan: Plan) -> dict[str, int]:
    """`limit_train_batches` and `val_check_interval` of a config, in the micro-batches that Lightning counts.

    In a config they count global batches, or are a share of them: how many micro-batches make one up depends on the
    machine, and an epoch or a validation must not cut one in two.
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
    """A number of batches or a share of them, as a number; None for all, and for what is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    if isinstance(value, int) or value > 1:
        return int(value) if value % 1 == 0 else None
    return int(value * of) if value < 1 else None


def plain_trainer(train: Mapping[str, Any], callbacks: Sequence[Callback]) -> Trainer:
    """A Trainer for one device that writes nothing, with the config's precision."""
    config = _config(train, "").get("trainer") or {}
    chosen = {key: config[key] for key in _PLAIN if config.get(key) is not None}
    silence()
    return Trainer(
        **chosen, **_DEFAULTS, devices=1, logger=False, enable_checkpointing=False, callbacks=list(callbacks)
    )


def batch_transform(train: Mapping[str, Any], project: Path) -> Callable[[Any], Any] | None:
    """The user's `train.transform` with its arguments bound, None if there is none; errors as `load_callable`."""
    if train.get("transform") is None:
        return None
    wanted = BatchTransform.model_validate(train["transform"])
    call = load_callable(wanted.call, wanted.args, "train.transform", add_project(project))
    return call if wanted.per == "batch" else functools.partial(_each_sample, call)


def _each_sample(call: Callable[[Any], Any], batch: Any) -> Any:
    """A batch of what the user's function makes of each sample."""
    values = list(batch.values()) if isinstance(batch, dict) else batch
    samples = zip(*values, strict=True)
    if isinstance(batch, dict):
        return default_collate([call(dict(zip(batch, sample, strict=True))) for sample in samples])
    return default_collate([call(sample) for sample in samples])


def silence() -> None:
    """Keep Lightning's banners and tips out of the logs; its warnings stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*is smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".*litlogger.*")


class _Assembly(LightningCLI):
    """LightningCLI without a command line: instantiates and stops there."""

    def __init__(self, config: dict[str, Any], trainer: tuple[dict[str, Any], list[Callback]] | None) -> None:
        self._given = trainer
        super().__init__(
            save_config_callback=None,
            trainer_defaults=_DEFAULTS,
            parser_kwargs={"exit_on_error": False},
            args=config,
            run=False,
        )

    def instantiate_trainer(self, **_: Any) -> Any:
        """A Trainer with the config's settings, ours on top, the user's callbacks and loggers before ours."""
        if self._given is None:
            return None
        owned, callbacks = self._given
        theirs = dict(self._get(self.config_init, "trainer", default={}))
        loggers = [*_listed(owned.get("logger")), *_listed(theirs.get("logger") or None)]
        both = {"logger": loggers, "callbacks": [*_listed(theirs.get("callbacks")), *callbacks]}
        return Trainer(**{**theirs, **owned, **both})

    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        # Lightning makes the config's optimizer here and now, from parameters that sharding or configure_model
        # replaces later; ours is made when it is asked for.
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
    config: dict[str, Any],
    project: Path,
    trainer: tuple[dict[str, Any], list[Callback]] | None = None,
) -> _Assembly:
    silence()
    root = add_project(project)
    for part, base in (("model", LightningModule), ("data", LightningDataModule)):
        if config.get(part):
            load_class(config[part]["class_path"], base, f"train.lightning: {part}.class_path", root)
    try:
        with _no_command_line():
            return _Assembly({**config, "seed_everything": train.get("seed", 0)}, trainer)
    except (TrainwrightError, KeyboardInterrupt):
        raise
    except ArgumentError as error:
        raise UsageError(f"train.lightning: {_sentence(str(error))}.", remedy=_REMEDY) from error
    except BaseException as error:
        theirs = _raised_by_user(error, root)
        if theirs is not None:
            raise UserCodeError(
                f"The Lightning config could not be built: {describe(theirs)}.",
                user_traceback=user_traceback(theirs, root),
            ) from error
        if isinstance(error, MisconfigurationException | TypeError | ValueError):
            raise UsageError(f"train.lightning: {describe(error)}.", remedy=_REMEDY) from error
        raise


def _raised_by_user(error: BaseException, root: Path) -> BaseException | None:
    """The exception in the chain that the user's code raised: jsonargparse wraps it in one of its own."""
    link: BaseException | None = error
    while link is not None and not raised_in_project(link, root):
        link = link.__cause__ or link.__context__
    return link


def _sentence(report: str) -> str:
    """The field and the reason in jsonargparse's report, which lists every type that the value is not."""
    keys = re.findall(r'Parser key "([^"]+)":', report)
    lines = [line.strip(" -") for line in report.splitlines()]
    noise = ("Parser key", "Does not", "Subtypes", "Errors", "Problem with given class", "Given value", "Expected a")
    reasons = [line for line in lines if line and not line.startswith(noise)]
    expected = [line.rstrip(".") for line in lines if line.startswith("Expected a") and "NoneType" not in line]
    reason = (reasons or [" or ".join(expected)])[0].rstrip(".:")
    return f"{'.'.join(keys)}: {reason}" if keys else reason


@contextmanager
def _no_command_line() -> Iterator[None]:
    """LightningCLI warns when it is given a config beside command line arguments; those of a child are ours."""
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = arguments


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
