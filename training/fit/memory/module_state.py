"""A module outside a training: with a Trainer that does nothing, and its optimizers in a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer


def with_trainer(module: LightningModule, config: dict[str, Any]) -> None:
    """Attach a Trainer, which a module may ask for the length of the training."""
    lasts = {name: config[name] for name in ("max_steps", "max_epochs") if config.get(name) is not None}
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **lasts)


def optimizers_of(made: Any) -> Iterator[torch.optim.Optimizer]:
    """The optimizers in whatever `configure_optimizers` may return."""
    if isinstance(made, torch.optim.Optimizer):
        yield made
    elif isinstance(made, dict):
        yield from optimizers_of(made.get("optimizer"))
    elif isinstance(made, list | tuple):
        for one in made:
            yield from optimizers_of(one)
