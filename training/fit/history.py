"""The history of the values that a module logged: kept in memory, and saved in checkpoints as `history.json`.

Without a logger in the Lightning config it is what `self.logger` is, and answers as far as a history can.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers.logger import DummyExperiment, Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor

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
