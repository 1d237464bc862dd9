"""Detects that a training diverges, from the loss of every step and the weights of every save, and names the samples
that may have caused it.

Reading a value from a GPU waits for its step. There the check runs only every so many steps and at each checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from data_contracts.errors import CorruptError, Diverged, TrainwrightError
from data_contracts.handoffs import Checkpoint
from training.loader.view import loader_of

log = logging.getLogger(__name__)

# The ranks agree on the greatest finding. A loss that is not finite narrows the batch down further than a weight does.
FINE, ROSE, BAD_WEIGHT, BAD_LOSS = range(4)
WORDS = {
    ROSE: "The loss rose above train.spike_factor times its mean over the steps before",
    BAD_WEIGHT: "A weight is not a finite number",
    BAD_LOSS: "The loss is not a finite number",
}
LOOK_EVERY = 16
# Steps in the mean before a rise counts, and the weight of each new step in the mean.
SETTLED_STEPS = 32
SHARE = 1 / 32
# Rows that the error itself names; the rank's log has all of them.
MOST_NAMED = 64


class LossWatch:
    """One rank's view of its training.

    Args:
        global_batch: samples of a step.
        spike_factor: a loss above this multiple of its running mean is a rise; None: a rise is never reported.
    """

    def __init__(self, global_batch: int, spike_factor: float | None) -> None:
        self._batch, self._factor = global_batch, spike_factor
        self._finite: Tensor | bool | None = None
        self._rose: Tensor | None = None
        self._mean: Tensor | None = None
        self._steps = 0
        # Samples consumed when the losses, and when the weights, were last known to be fine.
        self._loss_at = self._weight_at = 0

    def begin(self, samples: int) -> None:
        """Resume from a checkpoint, whose weights are finite."""
        self._loss_at = self._weight_at = samples

    def take(self, outputs: Any) -> None:
        """Record the loss that a step returned, without waiting for it."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):
            return
        loss = loss.detach()
        # A number that is already on the host is cheaper to read than to put off.
        there = loss.device.type == "cpu" and loss.numel() == 1
        fine = math.isfinite(loss.item()) if there else torch.isfinite(loss).all()
        self._finite = fine if self._finite is None else self._finite & fine
        if self._factor is not None:
            self._follow(loss.float().mean())

    def look(self, module: torch.nn.Module, *, weights: bool) -> int:
        """The finding, or FINE; waits for the steps so far."""
        if self._finite is not None and not bool(self._finite):
            return BAD_LOSS
        if weights and not all_finite(module):
            return BAD_WEIGHT
        return ROSE if self._rose is not None and bool(self._rose) else FINE

    def fine(self, samples: int, *, weights: bool) -> None:
        """Record that no rank found anything wrong after `samples` samples."""
        self._loss_at = samples
        if weights:
            self._weight_at = samples

    def since(self, finding: int, samples: int) -> int:
        """The number of samples after which the cause must lie."""
        if finding == BAD_LOSS:
            # The cause is the batch itself or the weights that the previous batch left; never what a checkpoint holds.
            return max(self._weight_at, self._loss_at - self._batch)
        if finding == BAD_WEIGHT and self._finite is not None:
            # The last step's loss was computed with the weights before it, and was finite.
            return max(self._weight_at, samples - self._batch)
        return self._weight_at if finding == BAD_WEIGHT else self._loss_at

    def _follow(self, loss: Tensor) -> None:
        mean = loss if self._mean is None else self._mean
        if self._steps >= SETTLED_STEPS and self._factor is not None:
            rose = loss > self._factor * mean.abs()
            self._rose = rose if self._rose is None else self._rose | rose
        self._mean = mean + (loss - mean) * SHARE
        self._steps += 1


def diverged(trainer: L.Trainer, finding: int, since: int, samples: int) -> Diverged:
    """The error for a finding. It names the samples that may have caused it: those after `since`, up to `samples`."""
    step = trainer.global_step
    details: dict[str, Any] = {"step": step, "samples": [since, samples]}
    where = f"at step {step} (epoch {trainer.current_epoch}), after samples {since:,} to {samples:,}"
    sentence = f"{WORDS[finding]} {where}."
    loader = loader_of(trainer)
    if loader is None:
        return Diverged(sentence, details=details)
    rows = loader.rows(since, samples)
    log.warning("the samples %d to %d, which may have caused it, are rows %s", since, samples, rows.tolist())
    details |= {"rows": rows[:MOST_NAMED].tolist()}
    loader.close()
    with contextlib.suppress(TrainwrightError):  # such as a store that is unavailable: the loss is still the cause
        if missing := loader.split.without_numbers(rows):
            named = ", ".join(f"{name} in {count}" for name, count in missing.items())
            return Diverged(
                f"{sentence} Of their {len(rows):,} rows some hold no number (missing, NaN or infinite): {named}.",
                remedy="Fill them or drop the rows in shards.transform, or fill them in train.transform.",
                details=details,
            )
    return Diverged(sentence, details=details)


def all_finite(module: torch.nn.Module) -> bool:
    """Whether all parameters are finite. Buffers are not checked: some hold infinities on purpose, such as a causal
    mask.
    """
    # A sum is read at the speed of memory. If it is finite, all values are; if it is not, it may only have overflowed.
    local = map(_local, module.parameters())
    return all(bool(part.sum().isfinite()) or bool(part.isfinite().all()) for part in local)


def check_resumed(trainer: L.Trainer, checkpoint: Checkpoint) -> None:
    """Raise CorruptError if the state that this rank restored is not finite, or has another number of steps.

    Infinities in an optimizer's state are allowed: a square may overflow while the weights stay finite.
    """
    about = {"checkpoint": checkpoint.ref.uri}
    if trainer.global_step != checkpoint.step:
        raise CorruptError(
            f"The state in {checkpoint.ref.uri} counts {trainer.global_step:,} steps, not {checkpoint.step:,}.",
            details=about,
        )
    what = "" if all_finite(trainer.lightning_module) else "weights"
    for optimizer in trainer.optimizers:
        state = [value for one in optimizer.state.values() for value in one.values() if isinstance(value, Tensor)]
        # NaN in one value makes the sum NaN; so do infinities of both signs.
        if any(bool(part.sum().isnan()) and bool(part.isnan().any()) for part in map(_local, state)):
            what = what or "an optimizer's state"
        if not all(math.isfinite(group.get("lr", 0)) for group in optimizer.param_groups):
            what = what or "a learning rate"
    if what:
        raise CorruptError(
            f"The checkpoint {checkpoint.ref.uri} holds numbers that are not finite, in {what}.",
            details=about,
        )


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
