"""A small training in which Lightning is observed from inside, for the table in `tests.support.lightning_internals`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn


@dataclass
class Seen:
    """What a small training showed: one epoch of two batches, one of validation, observed after the first batch.

    Attributes:
        trainer: after its end.
        active: what the running loop logs into; batch_size: by which it weighs.
        order: who heard of the end of training, in order.
        step, validation: what was logged, by the key that Lightning gives it, after a batch of either.
    """

    trainer: L.Trainer
    order: list[str] = field(default_factory=list)
    active: Any = None
    batch_size: int = 0
    loaders: Any = None
    checkpoint: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)


class Batches:
    """A loader with a position."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.ones(2, 3, 1)

    def state_dict(self) -> dict[str, int]:
        """A position that is easily recognized."""
        return {"at": 7}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing; it is never resumed."""


class Net(L.LightningModule):
    """Logs the mean of its batch in both steps."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.layer, self.order = nn.Linear(1, 1), order

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.log("ones", batch.mean(), on_step=True, on_epoch=True, prog_bar=True)
        return self.layer(batch).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val", batch.mean())

    def on_train_end(self) -> None:
        self.order.append("module")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class _Look(L.Callback):
    """Takes what the table asks for while it is there; what is missing fails a line of the table."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        with contextlib.suppress(Exception):
            self._seen.active = trainer._results
            self._seen.batch_size = trainer._results.batch_size
            self._seen.step = self._seen.step or {key: vars(item).copy() for key, item in trainer._results.items()}
        with contextlib.suppress(Exception):
            self._seen.loaders = trainer.fit_loop._combined_loader
            self._seen.checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        with contextlib.suppress(Exception):
            results = trainer.fit_loop.epoch_loop.val_loop._results
            self._seen.validation = {key: vars(item).copy() for key, item in results.items()}

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._seen.order.append("callback")


def quiet_trainer(**settings: Any) -> L.Trainer:
    """A Trainer of one epoch on the CPU that writes nothing."""
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "num_sanity_val_steps": 0, **quiet, **settings}
    return L.Trainer(**given)


@functools.cache
def observed() -> Seen:
    """The small training, carried out once."""
    trainer = quiet_trainer()
    seen = Seen(trainer)
    trainer.callbacks.append(_Look(seen))
    trainer.strategy.on_train_end = lambda: seen.order.append("strategy")  # type: ignore[method-assign]
    trainer.fit(Net(seen.order), Batches(), Batches())
    return seen
