"""How long a run will take, with a range, from what earlier runs of the pipeline took: pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.estimates.past import PastStage, PastTraining

# Lightning's, where a config names neither epochs nor steps.
LIGHTNING_EPOCHS = 1000


@dataclass(frozen=True)
class Span:
    """Seconds: the expected, the least and the most."""

    expected: float
    least: float
    most: float

    def __add__(self, other: Span) -> Span:
        return Span(self.expected + other.expected, self.least + other.least, self.most + other.most)

    def times(self, factor: float) -> Span:
        """The span multiplied."""
        return Span(self.expected * factor, self.least * factor, self.most * factor)

    def to_json(self, name: str) -> dict[str, float]:
        """For a program: `name` has the unit, such as `train_s`."""
        stem, _, unit = name.rpartition("_")
        rounded = {"": self.expected, "least_": self.least, "most_": self.most}
        return {f"{stem}_{which}{unit}": round(value, 6) for which, value in rounded.items()}


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
        if isinstance(limit, int) or limit > 1:
            epoch_steps = min(epoch_steps, int(limit))
        elif limit < 1:
            epoch_steps = int(epoch_steps * limit)
    steps, epochs = trainer.get("max_steps"), trainer.get("max_epochs")
    most = steps if isinstance(steps, int) and steps >= 0 else None
    if epochs is None and most is None:
        epochs = LIGHTNING_EPOCHS
    if isinstance(epochs, int) and epochs >= 0:
        by_epochs = epochs * epoch_steps if epoch_steps else None
        if by_epochs is None and most is None:
            return None
        most = min(one for one in (most, by_epochs) if one is not None)
    return None if most is None else most * global_batch


def like(past: Sequence[PastTraining], machine: str, settings: str) -> tuple[list[PastTraining], str]:
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
    past: Sequence[PastTraining], samples: int | None, ranks: int, machine: str, settings: str, strategy: str = ""
) -> TrainingTime:
    """How long a training of so many samples takes on `ranks` ranks of a machine.

    From trainings with other numbers of ranks: expected and least if it speeds up evenly; most if it does not at all.
    """
    chosen, note = like(past, machine, settings)
    if not chosen:
        return TrainingTime(None, note)
    if samples is None:
        return TrainingTime(None, "the number of steps is not known before the dataset is made")
    exact = [one for one in chosen if one.ranks == ranks]
    exact = [one for one in exact if one.strategy == strategy] or exact
    notes = [note] if note else []
    if not exact:
        counts = ", ".join(map(str, sorted({one.ranks for one in chosen})))
        notes.append(f"scaled evenly from {counts} rank{'' if counts == '1' else 's'}")
    used = exact or chosen
    expected = [one.around_s + samples / (one.rate * ranks / one.ranks) for one in used]
    as_then = [one.around_s + samples / one.rate for one in used]
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
