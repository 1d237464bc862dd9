"""Batches that are prepared before the steps come from our loader or from the user's, and are repeated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from training.profile import ReadyBatches, with_ready_batches


def test_the_first_batches_are_repeated_to_the_number_of_steps() -> None:
    ready = ReadyBatches(iter([1, 2, 3]), 7)
    assert len(ready) == 7
    assert list(ready) == list(ready) == [1, 2, 3, 1, 2, 3, 1]
    assert list(ReadyBatches(iter(range(10)), 2)) == [0, 1]
    assert len(ReadyBatches([], 5)) == 0
    assert list(ReadyBatches([], 5)) == []


def test_either_loader_is_replaced() -> None:
    closed: list[int] = []

    class Ours(list[int]):
        def close(self) -> None:
            closed.append(1)

    loaders: dict[str, Any] = {"train_dataloaders": Ours([1, 2])}
    with_ready_batches(loaders, None, 3)  # type: ignore[arg-type]
    assert list(loaders["train_dataloaders"]) == [1, 2, 1]
    assert closed == [1]
    theirs: Any = SimpleNamespace(train_dataloader=lambda: [5])
    with_ready_batches({}, theirs, 2)
    assert list(theirs.train_dataloader()) == [5, 5]
