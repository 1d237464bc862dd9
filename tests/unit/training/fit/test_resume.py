"""Before its first step a training compares its loader's position with the checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data_contracts.errors import TrainwrightError
from training.fit.measuring import History
from training.fit.resume import Resume
from training.loader.loaders import LoaderView


def begin(at: int, sealed: int, *, own: bool = False) -> bool:
    """Begin a training whose loader stands at a sample, from a checkpoint that was made after so many."""
    train = SimpleNamespace(global_batch_size=8, seed=0)
    context: Any = SimpleNamespace(rank=3, train=train, resume=None, init_from=None)
    loader: Any = None if own else LoaderView(SimpleNamespace(samples=at))  # type: ignore[arg-type]
    trainer: Any = SimpleNamespace(
        train_dataloader=loader, fit_loop=SimpleNamespace(total_batch_idx=-1), lightning_module=torch.nn.Linear(1, 1)
    )
    return Resume(context, History(), own, None, sealed).begin(trainer, None, 0)


@pytest.mark.parametrize(("at", "sealed"), [(8, 0), (0, 1472), (1464, 1472)])
def test_a_loader_that_stands_elsewhere_than_the_checkpoint_ends_the_training(at: int, sealed: int) -> None:
    with pytest.raises(TrainwrightError) as caught:
        begin(at, sealed)
    assert caught.value.message == (
        f"The loader of rank 3 begins after {at:,} samples instead of {sealed:,}, so the training would see other rows."
    )
    assert (caught.value.exit_code, caught.value.remedy) == (1, TrainwrightError.default_remedy)


def test_a_loader_that_stands_where_the_checkpoint_was_made_begins() -> None:
    assert begin(0, 0) is False
    assert begin(1472, 1472) is False
    # The position of a loader of the user's is not known.
    assert begin(0, 1472, own=True) is False
