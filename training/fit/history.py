"""The history of the values that a module logged: kept in memory, and saved in checkpoints as `history.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor


class History(Logger):
    """A Lightning logger that keeps `{"step", "epoch", name: value}` records on rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, float]] = []

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


class Muted(DummyLogger):
    """Stands in for a logger of the user's where nothing is to be reported; its folder is in the project's copy."""

    save_dir = log_dir = root_dir = "muted"


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
