"""How many rows a batch has: our loaders know it, a DataLoader's sampler says it, else its columns must agree on it.

Lightning weights means over an epoch by the length of the first tensor that it finds anywhere in a batch. For a column
of lists, that is the length of one row's list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader

from training.lightning_adapter import weigh_logged_by
from training.loader import OrderedLoader
from training.loader.view import loader_of


class CountRows(L.Callback):
    """Gives Lightning the number of rows of each batch of our loaders."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Runs after Lightning has taken the batch, before the module's step logs anything."""
        if (loader := loader_of(trainer)) is not None:
            weigh_logged_by(trainer, loader.plan.micro_batch)

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Runs at the same point of a validation batch."""
        if isinstance(trainer.val_dataloaders, OrderedLoader):
            weigh_logged_by(trainer, trainer.val_dataloaders.num_rows(batch_idx))


def rows_of(batch: Any, loaders: Any, position: int, loader: int = 0) -> int | None:
    """The rows of a batch; None if the number is unknown.

    Args:
        loaders: what Lightning iterates: a loader, or several.
        position: the batch's place among those of its loader, which is number `loader`.
    """
    several = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
    source = several[loader] if isinstance(several, list | tuple) and loader < len(several) else several
    if isinstance(source, OrderedLoader):
        return source.num_rows(position)
    if isinstance(source, DataLoader) and type(source.batch_sampler) is BatchSampler:
        sampler = source.batch_sampler
        try:
            rows = len(sampler.sampler) - position * sampler.batch_size  # type: ignore[arg-type]
        except TypeError:  # a sampler without a length
            return _agreed(batch)
        return max(0, min(sampler.batch_size, rows))
    return _agreed(batch)


def _agreed(batch: Any) -> int | None:
    """The only number of rows that all columns can have; None if there are several such numbers, or none."""
    counts = _counts(batch, outermost=True)
    return next(iter(counts)) if counts is not None and len(counts) == 1 else None


def _counts(value: Any, outermost: bool = False) -> set[int] | None:
    """The possible numbers of rows of a column, or of several in a container; None if it does not say."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return {len(value)} if value.ndim else None
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return _common(value.values())
    if not isinstance(value, list | tuple):
        return None
    inside = _common(value)
    if outermost and any(isinstance(one, torch.Tensor) and one.ndim for one in value):
        return inside
    # A list is itself a column, of texts or of tensors that differ in length, or it holds columns.
    return (inside or set()) | {len(value)}


def _common(columns: Any) -> set[int] | None:
    known = [counts for counts in map(_counts, columns) if counts is not None]
    return set.intersection(*known) if known else None
