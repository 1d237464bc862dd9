"""Batches that are prepared before the steps: what a step would take if it never waited for data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

# Batches that are held in memory, and taken again and again.
_HELD = 32


class ReadyBatches:
    """A loader's first batches, repeated to `count`."""

    def __init__(self, loader: Iterable[Any], count: int) -> None:
        self._held = list(itertools.islice(loader, min(_HELD, count)))
        self._count = count if self._held else 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self._held), self._count)


def with_ready_batches(loaders: dict[str, Any], owner: LightningDataModule | LightningModule, count: int) -> None:
    """Replace our loader, or that of the user's data module, by its first batches."""
    if "train_dataloaders" in loaders:
        loader = loaders["train_dataloaders"]
        loaders["train_dataloaders"] = ReadyBatches(loader, count)
        loader.close()
        return
    make = owner.train_dataloader

    def train_dataloader() -> ReadyBatches:
        return ReadyBatches(make(), count)

    owner.train_dataloader = train_dataloader  # type: ignore[method-assign]
