"""Records, from Lightning's hooks, which phase a rank is in and how long it waited for data."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
from torch import Tensor

from training.fit.reporting.reports import Reports
from training.loader.view import loader_of


class ActivityCallback(L.Callback):
    """Moves the rank through the places of `training.fit.reporting.rank_activity`; it makes no decisions.

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
        spent = {"your loader": 1.0} if loader is None else loader.spent
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
        """Note that validation begins; its first batch may have to be compiled."""
        self.enter("hooks")

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """A batch of the validation is done."""
        self._reports.activity.moved()
        self.enter("validation")

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that the user's hooks follow."""
        self.enter("hooks")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that the user's hooks follow."""
        if self._stepped is not None:
            self.stepping_s = time.monotonic() - self._stepped
        self.enter("hooks")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that the user's hooks follow."""
        self.enter("hooks")
