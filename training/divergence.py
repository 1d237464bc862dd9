"""Whether a training goes wrong, and with which samples it may have: the loss of every step, the weights of every save.

Looking at a value of a GPU waits for its step, so there it is put off to every so many steps and to each checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# Of two ranks' findings the greater counts: a loss that is no number says nearer than a weight which batch it was.
FINE, ROSE, BAD_WEIGHT, BAD_LOSS = range(4)
WORDS = {
    ROSE: "The loss rose above train.spike_factor times its mean over the steps before",
    BAD_WEIGHT: "A weight is not a finite number",
    BAD_LOSS: "The loss is not a finite number",
}
LOOK_EVERY = 16
# A rise counts once so many steps have a mean; each step's share of it.
SETTLED_STEPS = 32
SHARE = 1 / 32


class LossWatch:
    """One rank's view of its training.

    Args:
        global_batch: samples of a step.
        spike_factor: a loss above so many times its running mean is a rise; None: none is.
    """

    def __init__(self, global_batch: int, spike_factor: float | None) -> None:
        self._batch, self._factor = global_batch, spike_factor
        self._finite: Tensor | bool | None = None
        self._rose: Tensor | None = None
        self._mean: Tensor | None = None
        self._steps = 0
        # Samples consumed when the losses, and when the weights, were last seen to be fine.
        self._loss_at = self._weight_at = 0

    def begin(self, samples: int) -> None:
        """Go on from a checkpoint, whose weights are finite."""
        self._loss_at = self._weight_at = samples

    def take(self, outputs: Any) -> None:
        """Remember what a step returned, without waiting for it."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):
            return
        loss = loss.detach()
        # Looking at a number that is there already costs less than the operations that would put it off.
        there = loss.device.type == "cpu" and loss.numel() == 1
        fine = math.isfinite(loss.item()) if there else torch.isfinite(loss).all()
        self._finite = fine if self._finite is None else self._finite & fine
        if self._factor is not None:
            self._follow(loss.float().mean())

    def look(self, module: torch.nn.Module, *, weights: bool) -> int:
        """What is wrong, if anything; waits for the steps so far."""
        if self._finite is not None and not bool(self._finite):
            return BAD_LOSS
        if weights and not all_finite(module):
            return BAD_WEIGHT
        return ROSE if self._rose is not None and bool(self._rose) else FINE

    def fine(self, samples: int, *, weights: bool) -> None:
        """No rank found anything wrong after so many samples."""
        self._loss_at = samples
        if weights:
            self._weight_at = samples

    def since(self, finding: int, samples: int) -> int:
        """The samples after this one may have done it."""
        if finding == BAD_LOSS:
            # By its own batch, or by the weights that the one before left behind; never by what a checkpoint holds.
            return max(self._weight_at, self._loss_at - self._batch)
        if finding == BAD_WEIGHT and self._finite is not None:
            # The last step's loss was computed with the weights before it, and was a number.
            return max(self._weight_at, samples - self._batch)
        return self._weight_at if finding == BAD_WEIGHT else self._loss_at

    def _follow(self, loss: Tensor) -> None:
        mean = loss if self._mean is None else self._mean
        if self._steps >= SETTLED_STEPS and self._factor is not None:
            rose = loss > self._factor * mean.abs()
            self._rose = rose if self._rose is None else self._rose | rose
        self._mean = mean + (loss - mean) * SHARE
        self._steps += 1


def all_finite(module: torch.nn.Module) -> bool:
    """Parameters alone: a buffer may well hold an infinity, such as a causal mask."""
    local = [p.to_local() if isinstance(p, DTensor) else p for p in (each.detach() for each in module.parameters())]
    # A sum is read at the speed of memory and is finite where all values are; one that is not may have overflowed.
    return all(bool(part.sum().isfinite()) or bool(part.isfinite().all()) for part in local)
