"""How long a run will take, with a range, from what earlier runs of the pipeline took: pure functions."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tasks.estimates.past import PastStage, PastTraining
from tasks.estimates.span import Span

# Lightning's, where a config names neither epochs nor steps.
LIGHTNING_EPOCHS = 1000


@dataclass(frozen=True)
class TrainingTime:
    """How long a training will take, and what the estimate rests on.

    Attributes:
        span: None if it is unknown, and then `why` says the reason.
    """

    span: Span | None
    why: str
    runs: int = 0


def samples_ahead(trainer: Mapping[str, Any], epoch_steps: int, global_batch: int) -> int | None:
    """Samples that a training will consume at most; None if its config has no end, or the epoch's length is unknown.

    Args:
        trainer: of the Lightning config; its batches are global batches. epoch_steps: 0 if unknown.
    """
    limit = trainer.get("limit_train_batches")
    if isinstance(limit, int | float) and not isinstance(limit, bool) and limit >= 0:
        # As Lightning reads it, 1 is one batch and 1.0 is all of them.
        if isinstance(limit, int) or 1 < limit < math.inf:
            epoch_steps = min(epoch_steps, int(limit))
        elif limit < 1:
            epoch_steps = int(epoch_steps * limit)
    steps, epochs = trainer.get("max_steps"), trainer.get("max_epochs")
    most = steps if isinstance(steps, int) and steps >= 0 else None
    if epochs is None and most is None and trainer.get("max_time") is None:
        epochs = LIGHTNING_EPOCHS
    if isinstance(epochs, int) and epochs >= 0:
        by_epochs = epochs * epoch_steps if epoch_steps else None
        if by_epochs is None and most is None:
            return None
        most = min(one for one in (most, by_epochs) if one is not None)
    return None if most is None else most * global_batch


def most_s(trainer: Mapping[str, Any]) -> float | None:
    """The longest that the steps of a training take: `max_time` of its Lightning config; None without it."""
    limit = trainer.get("max_time")
    if isinstance(limit, str) and (parts := re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", limit.strip())):
        limit = dict(zip(("days", "hours", "minutes", "seconds"), map(int, parts.groups()), strict=True))
    if isinstance(limit, Mapping):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return timedelta(**limit).total_seconds()
    return None


def comparable(past: Sequence[PastTraining], machine: str, settings: str) -> tuple[list[PastTraining], str]:
    """The trainings that tell most about one on this machine with these settings, and what differs; none: why."""
    if not past:
        return [], "no earlier run of this pipeline has trained"
    here = [one for one in past if one.machine == machine]
    if not here:
        places = ", ".join(sorted({one.machine for one in past}))
        return [], f"this pipeline never trained on {machine}, only on {places}"
    same = [one for one in here if one.settings == settings]
    return (same, "") if same else (here, "with other settings of the module or the batch")


def training_time(
    past: Sequence[PastTraining],
    samples: int | None,
    ranks: int,
    machine: str,
    settings: str,
    strategy: str = "",
    limit_s: float | None = None,
) -> TrainingTime:
    """How long a training of so many samples takes on `ranks` ranks of a machine.

    From trainings with other numbers of ranks: expected and least if it speeds up evenly; most if it does not at all.

    Args:
        samples: None if they are unknown; limit_s: the longest that its steps may take; None without a limit.
    """
    chosen, note = comparable(past, machine, settings)
    if not chosen:
        return TrainingTime(None, note)
    if samples is None and limit_s is None:
        return TrainingTime(None, "the number of steps is not known before the dataset is made, or has no end")
    exact = [one for one in chosen if one.ranks == ranks]
    exact = [one for one in exact if one.strategy == strategy] or exact
    notes = [note] if note else []
    if not exact:
        counts = ", ".join(map(str, sorted({one.ranks for one in chosen})))
        notes.append(f"scaled evenly from {counts} rank{'' if counts == '1' else 's'}")
    used = exact or chosen
    most = math.inf if limit_s is None else limit_s
    steps = [math.inf if samples is None else samples / one.rate for one in used]
    expected = [one.overhead_s + min(each * one.ranks / ranks, most) for one, each in zip(used, steps, strict=True)]
    as_then = [one.overhead_s + min(each, most) for one, each in zip(used, steps, strict=True)]
    if limit_s is not None and max(steps) * max(one.ranks for one in used) / ranks > limit_s:
        notes.append("it may end at trainer.max_time")
    span = Span(statistics.median(expected), min(expected), max([*expected, *([] if exact else as_then)]))
    runs = len({one.run_id for one in used})
    return TrainingTime(span, "; ".join([f"{runs} earlier run{'' if runs == 1 else 's'}", *notes]), runs)


def stage_time(past: Sequence[PastStage], stage: str, raw_bytes: int) -> Span | None:
    """How long a stage takes for so much raw data; None if no earlier run carried it out.

    The expected time and one end of the range grow with the data; the other end is what earlier runs took.
    """
    known = [one for one in past if one.stage == stage]
    if not known:
        return None
    scaled = [one.seconds * (raw_bytes / one.raw_bytes if one.raw_bytes and raw_bytes else 1.0) for one in known]
    taken = [one.seconds for one in known]
    return Span(statistics.median(scaled), min(scaled + taken), max(scaled + taken))
