"""A module outside a training: with a Trainer that does nothing, and its optimizers in a row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch._subclasses.fake_tensor import unset_fake_temporarily

from training.lightning_adapter import attach_loader
from training.user.assemble import true_type

# Of an epoch whose length is not known: no size depends on it, but a schedule may need a number.
STEPS = 1_000


class _Batches:
    """A loader of which only the length is asked."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@contextlib.contextmanager
def default_type(config: dict[str, Any]) -> Iterator[None]:
    """Let new tensors have the type that a `-true` precision of the Trainer's config gives them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(true_type(config) or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def with_trainer(module: LightningModule, config: dict[str, Any], steps: int) -> None:
    """Attach a Trainer, which a module and its schedules may ask for the length of the training.

    Args:
        steps: of an epoch; 0 if unknown.
    """
    lasts = {name: config[name] for name in ("max_steps", "max_epochs") if config.get(name) is not None}
    lasts.setdefault("max_epochs", -1 if "max_steps" in lasts else 1_000)  # Lightning sets this when it fits
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **lasts)
    with unset_fake_temporarily():  # Lightning looks at the loader's length as a tensor
        attach_loader(module.trainer, module, _Batches(steps or STEPS))


def optimizers_of(made: Any) -> Iterator[torch.optim.Optimizer]:
    """The optimizers in whatever `configure_optimizers` may return."""
    if isinstance(made, torch.optim.Optimizer):
        yield made
    elif isinstance(made, dict):
        yield from optimizers_of(made.get("optimizer"))
    elif isinstance(made, list | tuple):
        for one in made:
            yield from optimizers_of(one)
