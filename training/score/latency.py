"""How long a model takes for one batch, measured while it is scored."""

from __future__ import annotations

import statistics
import time
from typing import Any

import lightning as L
import torch

# The first batches also pay for memory, compilation and caches.
_WARM_UP = 3


class Latency(L.Callback):
    """Times each call of `predict_step` or `test_step`; the first callback of a Trainer, so that no other is timed."""

    def __init__(self) -> None:
        self._since = 0.0
        self._taken_s: list[float] = []

    @property
    def median_ms(self) -> float | None:
        """The median over the batches but the first ones and the last, which may be smaller.

        The fastest of the others where there are so few; None if there were none.
        """
        full = self._taken_s[:-1] or self._taken_s
        if not full:
            return None
        return 1e3 * (statistics.median(full[_WARM_UP:]) if len(full) > _WARM_UP else min(full))

    def on_predict_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        """Begin to time a batch."""
        self._since = _now(module)

    def on_predict_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        """Take its time."""
        self._taken_s.append(_now(module) - self._since)

    def on_test_batch_start(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        """Begin to time a batch."""
        self._since = _now(module)

    def on_test_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        """Take its time."""
        self._taken_s.append(_now(module) - self._since)


def size_bytes(module: L.LightningModule) -> int:
    """The bytes of the module's parameters and buffers."""
    return sum(
        one.numel() * one.element_size() for one in module.state_dict().values() if isinstance(one, torch.Tensor)
    )


def _now(module: L.LightningModule) -> float:
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()
