"""What bounds a training step, from the seconds of its parts; pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from data_contracts.messages.commands import StepProfile

Bound = Literal["data", "transfer", "communication", "checkpoint", "callbacks", "compute", "memory", "calls", "unknown"]
# The parts of a step in the order in which they happen, each with what it is called on a page.
PARTS = {
    "data": "waiting for data",
    "transfer": "host to device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "synchronisation": "synchronisation",
    "checkpoint": "checkpoint",
    "callbacks": "callbacks, logging, rest",
}
_WORK = ("forward", "backward", "optimizer")
# Below this share of what the device can do, neither arithmetic nor memory limits a step, but the number of its calls.
_BUSY = 0.25
# What bounds a step, as people read it.
NAMES: dict[Bound, str] = {
    "data": "data",
    "transfer": "copies to the device",
    "communication": "communication",
    "checkpoint": "checkpoints",
    "callbacks": "callbacks and logging",
    "compute": "compute",
    "memory": "memory",
    "calls": "many small operations",
    "unknown": "the module's own work",
}
SENTENCES: dict[Bound, str] = {
    "data": "Steps wait for data longer than for anything else.",
    "transfer": "Copying batches to the device takes longer than anything else.",
    "communication": "Ranks wait for each other's gradients or parameters longer than for anything else.",
    "checkpoint": "Checkpoints hold the steps longer than anything else does.",
    "callbacks": "Callbacks and logging take longer than anything else.",
    "compute": "The module's arithmetic limits the steps: it needs longer than the memory traffic.",
    "memory": "Reading and writing memory limits the steps: it needs longer than the arithmetic.",
    "calls": "Many small operations limit the steps: the device could do their arithmetic and traffic much faster.",
    "unknown": "The module's own work takes longest; its operations could not be counted.",
}


@dataclass(frozen=True)
class Roofline:
    """Shares of the module's own time that its arithmetic and its memory traffic would need at the device's best."""

    compute: float
    memory: float


def parts_of(profile: StepProfile, checkpoint: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each part of a mean step, in the order of `PARTS`.

    What the exchange of gradients adds to a backward pass is synchronisation.

    Args:
        checkpoint: `train.checkpoint` as JSON, which says how many steps share a checkpoint.
    """
    steps = max(len(profile.step_s), 1)
    found = dict.fromkeys(PARTS, 0.0)
    for part, seconds in profile.phases.items():
        found[part if part in PARTS else "callbacks"] += seconds / steps
    if profile.exchange_s is not None:
        exposed = min(profile.exchange_s, found["backward"])
        found["backward"] -= exposed
        found["synchronisation"] += exposed
    between = steps_between(checkpoint, profile.steps_per_epoch, sum(found.values()))
    if profile.checkpoint_s is not None and between:
        found["checkpoint"] = profile.checkpoint_s / between
    return found


def steps_between(checkpoint: Mapping[str, Any], steps_per_epoch: int, step_s: float) -> float:
    """Steps from one checkpoint to the next; 0 if unknown."""
    every_s, chosen = checkpoint.get("every_s"), []
    if checkpoint.get("every_steps"):
        chosen.append(float(checkpoint["every_steps"]))
    if isinstance(every_s, int | float) and step_s > 0:
        chosen.append(max(every_s / step_s, 1.0))
    return min(chosen, default=float(steps_per_epoch))


def roofline(profile: StepProfile, parts: Mapping[str, float]) -> Roofline | None:
    """How close the module's work comes to the device's best; None if its operations were not counted."""
    work = sum(parts[one] for one in _WORK)
    if not (profile.flops or profile.bytes) or not (profile.peak_flops and profile.peak_bytes and work > 0):
        return None
    return Roofline(profile.flops / profile.peak_flops / work, profile.bytes / profile.peak_bytes / work)


def bound_by(parts: Mapping[str, float], roof: Roofline | None) -> Bound:
    """What bounds a step: the largest of its parts, or for the module's own work, what limits that."""
    if not all(math.isfinite(seconds) for seconds in parts.values()) or not any(parts.values()):
        return "unknown"
    waits: dict[Bound, float] = {
        "data": parts["data"],
        "transfer": parts["transfer"],
        "communication": parts["synchronisation"],
        "checkpoint": parts["checkpoint"],
        "callbacks": parts["callbacks"],
    }
    longest = max(waits, key=lambda name: waits[name])
    if waits[longest] > sum(parts[one] for one in _WORK):
        return longest
    if roof is None:
        return "unknown"
    if max(roof.compute, roof.memory) < _BUSY:
        return "calls"
    return "compute" if roof.compute >= roof.memory else "memory"


@dataclass(frozen=True)
class Comparison:
    """Samples per second before and after a change.

    Attributes:
        helps: whether it is faster beyond the spread of steps; None: the difference is within it.
    """

    before: float
    after: float
    helps: bool | None

    @property
    def gain(self) -> float:
        """How much faster it is, as a share."""
        return self.after / self.before - 1 if self.before > 0 else 0.0


def compare(before: StepProfile, after: StepProfile, checkpoint_s: tuple[float, float] = (0.0, 0.0)) -> Comparison:
    """Compare two profiles by the seconds of a row. A difference counts if the middle halves of the steps are apart.

    Args:
        checkpoint_s: seconds that checkpoints add to a step, before and after.
    """
    first, second = (
        [(seconds + wait) / one.rows for seconds in one.step_s]
        for one, wait in zip((before, after), checkpoint_s, strict=True)
    )
    (low, high), (low_after, high_after) = _middle(first), _middle(second)
    helps = True if high_after < low else False if low_after > high else None
    return Comparison(_per_second(first), _per_second(second), helps)


def _per_second(row_s: list[float]) -> float:
    """Rows per second of the middle step: one slow step of a busy machine must not decide."""
    middle = statistics.median(row_s) if row_s else 0.0
    return 1 / middle if middle > 0 else 0.0


def _middle(row_s: list[float]) -> tuple[float, float]:
    """The first and third quartile."""
    if len(row_s) < 2:
        return (row_s[0], row_s[0]) if row_s else (0.0, 0.0)
    low, _, high = statistics.quantiles(row_s, n=4, method="inclusive")
    return low, high
