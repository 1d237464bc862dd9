"""The history of the values that a module logged, and the files of the loggers that the config names.

The history is kept in memory, and saved in checkpoints as `history.json`. Without a logger in the Lightning config it
is what `self.logger` is, and answers as far as a history can. The files of other loggers are stored as one archive for
each generation: a logger with a relative `save_dir` writes below the rank's working folder, which ends with the
training.
"""

from __future__ import annotations

import io
import logging
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers.logger import DummyExperiment, Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor

from data_contracts.errors import TrainwrightError
from data_contracts.quoting import withholds
from infra.store import Store, layout
from training.fit.launch_context import Context

log = logging.getLogger(__name__)


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


MOST_BYTES = 256 * 2**20


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
