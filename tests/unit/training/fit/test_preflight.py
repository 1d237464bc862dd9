"""What is found out before step 1: state that no checkpoint can hold, and a loader whose batches were not planned."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from data_contracts.errors import UsageError
from training.fit.guards import try_capture, warn_of_batch_size


def test_state_that_contains_itself_is_the_users() -> None:
    state: dict[str, Any] = {}
    state["self"] = [state]
    with pytest.raises(UsageError, match=r"contains itself, or is too deep\. Keep it out of the saved state\."):
        try_capture({"callbacks": state}, {}, 0)


@pytest.mark.parametrize(("size", "first_rank", "said"), [(4, True, False), (8, True, True), (8, False, False)])
def test_another_batch_size_than_planned_is_said_once(
    size: int, first_rank: bool, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trainer: Any = SimpleNamespace(train_dataloader=SimpleNamespace(batch_size=size), is_global_zero=first_rank)
    context: Any = SimpleNamespace(train=SimpleNamespace(global_batch_size=8), world_size=2)
    with caplog.at_level(logging.WARNING):
        warn_of_batch_size(trainer, context)
    assert ("batch size is 8, but train.global_batch_size 8 on 2 ranks means 4" in caplog.text) is said
