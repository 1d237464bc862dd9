"""What a training shows of itself: measures for the rank's reports, logged values, and the files of loggers.

From Lightning's hooks come the phase that the rank is in, how long it waited for data, the loss, the gradient's norm
and the use of the device; nothing is decided here.

The history of the values that a module logged is kept in memory, and saved in checkpoints as `history.json`. Without a
logger in the Lightning config it is what `self.logger` is, and answers as far as a history can. The files of other
loggers are stored as one archive for each generation: a logger with a relative `save_dir` writes below the rank's
working folder, which ends with the training.
"""

from __future__ import annotations

import functools
import io
import logging
import math
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch.loggers.logger import DummyExperiment, Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from data_contracts.errors import TrainwrightError
from data_contracts.quoting import withholds
from infra.store import Store, layout
from training.fit.launch_context import Context
from training.fit.reports import DeviceTimes, Reports
from training.loader.loaders import loader_of

# The gradient's norm is taken once a second at most, and on a CPU so rarely that it takes less than this share of the
# time. On a GPU it is queued with the step, and read with the loss.
NORM_EVERY_S = 1.0
NORM_SHARE = 0.001
log = logging.getLogger(__name__)
MOST_BYTES = 256 * 2**20


class ActivityCallback(L.Callback):
    """Moves the rank through the places of `training.fit.reports`; it makes no decisions.

    Attributes:
        stepping_s: from the end of the first step to the end of the last epoch, with what lies between steps.
    """

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._stepped: float | None = None
        self.stepping_s = 0.0

    def enter(self, place: str) -> None:
        """Note where this rank is."""
        self._reports.activity.enter(place)

    def waited(self, seconds: float) -> None:
        """Count time spent fetching."""
        self._reports.waited(seconds)

    def waits(self, trainer: L.Trainer) -> tuple[float, str]:
        """Share of the training's time that was spent waiting for data, and what took longest while preparing it."""
        loader = loader_of(trainer)
        spent = {"your loader": 1.0} if loader is None else loader.split.spent
        cause = max(spent, key=lambda name: spent[name], default="")
        return self._reports.wait_share, cause

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note that a micro-batch is done."""
        if self._stepped is None:  # the first step is slower: buffers are made, kernels are chosen
            self._stepped = time.monotonic()
        self._reports.activity.stepped()
        self.enter("between")

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Enter the backward pass: with several ranks, they wait for each other there."""
        if trainer.world_size > 1:
            self.enter("backward")

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After the backward pass the time is this rank's own work again."""
        self.enter("stepping")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that the user's hooks follow, or a validation, whose first batch may have to be compiled."""
        self.enter("hooks")

    on_validation_epoch_end = on_train_end = on_validation_start

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """A batch of the validation is done."""
        self._reports.activity.moved()
        self.enter("validation")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that the user's hooks follow."""
        if self._stepped is not None:
            self.stepping_s = time.monotonic() - self._stepped
        self.enter("hooks")


class Measuring(L.Callback):
    """Keeps the values of a step, and reads them only when the rank reports: reading from a GPU has to wait for it."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._loss: Any = None
        self._norm: Tensor | None = None
        self._norm_at = 0.0
        self._read = (time.monotonic(), 0)
        self._flops_per_batch, self._peak_flops = 0.0, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Look up the device's peak, and a micro-batch's FLOPs if the module gives them as Lightning asks it to."""
        device = trainer.strategy.root_device
        if device.type == "cuda":
            self._reports.measures.device_memory = lambda: torch.cuda.max_memory_allocated(device)
            on_device = functools.partial(torch.cuda.device, device)
            self._reports.activity.follow(DeviceTimes(on_device=on_device))
        flops = getattr(pl_module, "flops_per_batch", None)
        if isinstance(flops, int | float) and flops > 0:
            self._flops_per_batch = float(flops)
            self._peak_flops = float(get_available_flops(device, _dtype(trainer)) or 0)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the micro-batch's loss alone: whatever else it returned may be large, and ends with it."""
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Take the gradient's norm, before it is clipped, if it is time."""
        began = time.monotonic()
        if began < self._norm_at or trainer.global_rank:
            return
        self._norm = gradient_norm(optimizer)
        ended = time.monotonic()
        self._norm_at = ended + max(NORM_EVERY_S, (ended - began) / NORM_SHARE)

    def read(self, trainer: L.Trainer) -> None:
        """Read the newest loss, and how much of the device's peak was used since the last call."""
        measures, loss = self._reports.measures, self._loss
        measures.gradient_norm = None if self._norm is None else _finite(float(self._norm))
        if isinstance(loss, Tensor) and loss.numel() == 1:
            # Lightning divides a micro-batch's loss by their number in a step.
            measures.loss = _finite(float(loss) * trainer.accumulate_grad_batches)
        (before, steps), now = self._read, (time.monotonic(), self._reports.activity.steps)
        self._read = now
        if self._peak_flops and now[0] > before:
            measures.mfu = self._flops_per_batch * (now[1] - steps) / (now[0] - before) / self._peak_flops


def gradient_norm(optimizer: Optimizer) -> Tensor | None:
    """The 2-norm of all gradients of an optimizer, which the device may still compute; None where a rank has only parts
    of them.
    """
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    if not gradients or any(isinstance(one, DTensor) or one.is_sparse for one in gradients):
        return None
    return torch.nn.utils.get_total_norm(gradients)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _dtype(trainer: L.Trainer) -> torch.dtype:
    precision = str(trainer.precision)
    return torch.bfloat16 if "bf16" in precision else torch.float16 if "16" in precision else torch.float32


class History(Logger):
    """A Lightning logger that keeps `{"step", "epoch", name: value}` records on rank 0.

    Args:
        folder: for files that the module writes beside its logger's; they end with the training.
    """

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self.records: list[dict[str, float]] = []
        self._folder, self._warned = folder, False

    @property
    def save_dir(self) -> str:
        """The folder."""
        return self._folder

    log_dir = save_dir

    @property
    def experiment(self) -> DummyExperiment:
        """An object that takes every call and keeps nothing, with a warning."""
        if not self._warned:
            self._warned = True
            log.warning(
                "self.logger.experiment keeps nothing, because the Lightning config names no logger: name one under "
                "trainer.logger, such as lightning.pytorch.loggers.CSVLogger."
            )
        return DummyExperiment()

    @property
    def name(self) -> str:
        """Part of Lightning's interface."""
        return "history"

    @property
    def version(self) -> str:
        """Part of Lightning's interface."""
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append the values that were logged at one step, without those that are not finite numbers."""
        self.records.append({"step": step or 0, **finite(metrics)})

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Does nothing: hyper-parameters are in the spec."""


def finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among logged values, by name, sorted."""
    found: dict[str, float] = {}
    for name in sorted(metrics):
        value = metrics[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            continue
        number = float(value)
        if math.isfinite(number):
            found[name] = number
    return found


def keep_logger_files(trainer: L.Trainer, context: Context, store: Store) -> None:
    """Store the files of the loggers that the config names; a training does not fail for them."""
    if context.rank != 0:
        return
    root = Path.cwd()
    loggers = [logger for logger in trainer.loggers if not isinstance(logger, History)]
    folders = [getattr(logger, "log_dir", None) or logger.save_dir for logger in loggers]
    inside = {folder for name in folders if name and root in (folder := (root / name).resolve()).parents}
    files = sorted({path for folder in inside for path in folder.rglob("*") if path.is_file()})
    if not files:
        return
    if withholds():
        log.warning("the files of the config's loggers are not kept, because they may repeat values of the data")
        return
    if sum(path.stat().st_size for path in files) > MOST_BYTES:
        log.warning("the files of the config's loggers are not kept: they are larger than %d MiB", MOST_BYTES // 2**20)
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.write(path, path.relative_to(root))
    try:
        store.create_once(layout.logger_files(context.training, context.generation), packed.getvalue())
    except TrainwrightError as error:
        log.warning("the files of the config's loggers are not kept: %s", error.message)
