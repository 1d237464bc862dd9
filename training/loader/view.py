"""What a module sees as `trainer.train_dataloader`: our loader as a DataLoader would be, apart from the Trainer's own
iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L

from training.lightning_adapter import ViewedLoader
from training.loader.loaders import TrainLoader


class LoaderView:
    """A rank's micro-batches of an epoch. Each iteration is independent of all others and moves nothing.

    It is always the first epoch, so that what a hook computes from it is the same in a resumed training.

    Attributes:
        loader: the loader that the Trainer iterates.
    """

    def __init__(self, loader: TrainLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return self.loader.first_epoch()


def with_view(loaders: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Trainer.fit` in which the user's code sees a view of our loader instead of the loader."""
    loader = loaders.get("train_dataloaders")
    viewed = {"train_dataloaders": ViewedLoader(loader, LoaderView(loader))} if isinstance(loader, TrainLoader) else {}
    return {**loaders, **viewed}


def loader_of(trainer: L.Trainer) -> TrainLoader | None:
    """Our loader that a Trainer iterates; None if the batches are the user's own."""
    view = trainer.train_dataloader
    return view.loader if isinstance(view, LoaderView) else None
