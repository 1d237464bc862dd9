"""The time of a batch, and the size of a module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch

from training.score import scoring
from training.score.scoring import Latency, size_bytes


class Half(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize(("seconds", "median_ms"), [([], None), ([9.0], 9_000), ([9, 9, 9, 1, 3, 2], 2_000)])
def test_the_first_batches_do_not_count(
    seconds: list[float], median_ms: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 100.0}
    monkeypatch.setattr(scoring, "_now", lambda module: clock["now"])
    timed, trainer, module = Latency(), SimpleNamespace(), SimpleNamespace()
    arguments: Any = (trainer, module, None, 0)
    for number, taken in enumerate(seconds):
        start, end = (
            (timed.on_predict_batch_start, timed.on_predict_batch_end)
            if number % 2
            else (timed.on_test_batch_start, timed.on_test_batch_end)
        )
        start(*arguments)
        clock["now"] += taken
        end(*arguments)
        clock["now"] += 1_000
    assert timed.median_ms == median_ms


def test_size_counts_parameters_and_buffers() -> None:
    assert size_bytes(Half()) == 4 * (3 * 2 + 2) + 8 * 5
