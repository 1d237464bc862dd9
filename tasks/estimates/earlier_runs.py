"""What a pipeline's earlier runs tell about the next one, each quantity with its least and its most.

How fast they trained and how long their stages took is read from their records. Time is a pure function of that.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import TrainwrightError
from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.resolved import Resolved
from infra.store import Store
from infra.store.seal import pass_over
from infra.store.store import read_several
from infra.usage import executions_of
from tasks.run.resolve import resolved_runs

# The newest runs of the pipeline that are read.
MOST_RUNS = 20
# Lightning's, where a config names neither epochs nor steps.
LIGHTNING_EPOCHS = 1000


@dataclass(frozen=True)
class Span:
    """A quantity, such as seconds: the expected, the least and the most."""

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
class PastTraining:
    """A training that one generation carried out from its first to its last step.

    Attributes:
        machine: its kind; settings: a digest of what decides how long a step takes, beside the ranks.
        rate: samples per second after the first step, with waiting, saving and validation.
        overhead_s: the rest of the stage's time: starting the nodes, what the first step takes longer, releasing them.
        epoch_samples: 0 if unknown.
    """

    run_id: str
    machine: str
    settings: str
    strategy: str
    nodes: int
    devices: int
    rate: float
    overhead_s: float
    epoch_samples: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices


@dataclass(frozen=True)
class PastStage:
    """How long a stage took, and how many bytes of raw data the run had; stage "": what lay between the stages."""

    run_id: str
    stage: str
    seconds: float
    raw_bytes: int


@dataclass
class Past:
    """What the records of earlier runs say.

    Attributes:
        unreadable: runs whose records are damaged.
    """

    trainings: list[PastTraining] = field(default_factory=list)
    stages: list[PastStage] = field(default_factory=list)
    unreadable: int = 0


def past_of(store: Store, pipeline: str) -> Past:
    """What the newest runs of a pipeline took."""

    def executions(resolved: Resolved) -> list[ExecutionUsage] | TrainwrightError:
        try:
            return executions_of(store, resolved.run_id)[0]
        except TrainwrightError as error:
            return error

    past = Past()
    runs = list(itertools.islice(resolved_runs(store, pipeline), MOST_RUNS))
    for resolved, found in zip(runs, read_several(store, executions, runs), strict=True):
        if isinstance(found, TrainwrightError):  # a damaged record must not keep a plan from being made
            pass_over(found)
            past.unreadable += 1
        else:
            add(past, resolved, found)
    return past


def add(past: Past, resolved: Resolved, executions: Sequence[ExecutionUsage]) -> None:
    """Add what one run took."""
    raw_bytes = sum(one.bytes for one in resolved.files)
    for execution in executions:
        for stage in execution.stages:
            if stage.status == "ran":
                past.stages.append(
                    PastStage(resolved.run_id, stage.name, max(stage.ended - stage.began, 0.0), raw_bytes)
                )
        if execution.ended is not None and all(stage.status != "killed" for stage in execution.stages):
            inside = sum(max(stage.ended - stage.began, 0.0) for stage in execution.stages)
            past.stages.append(
                PastStage(resolved.run_id, "", max(execution.ended - execution.began - inside, 0.0), raw_bytes)
            )
        gangs = [gang for gang in execution.gangs if gang.stage == "train" and gang.nodes]
        trained = [stage for stage in execution.stages if stage.name == "train" and stage.status == "ran"]
        if len(gangs) == len(trained) == 1 and gangs[0].ended == "done":
            past.trainings += _training(resolved, gangs[0], trained[0].ended - trained[0].began)


def _training(resolved: Resolved, gang: GangUsage, whole_s: float) -> list[PastTraining]:
    """The training of a generation; none if it took fewer than two steps."""
    steps, steps_s = gang.last_step - gang.first_step, gang.stepping_s or _seen_s(gang)
    if steps_s is None or steps < 2:
        return []
    train = resolved.spec["train"]
    each = gang.samples / gang.last_step if gang.samples else train["global_batch_size"]
    # The first step is slower than others: what it takes beyond them belongs to the start.
    step_s = steps_s / (steps - 1 if gang.stepping_s else steps)
    # A training whose steps were seen at once has no rate: its time is all around.
    return [
        PastTraining(
            run_id=resolved.run_id,
            machine=resolved.price.place,
            settings=settings_of(train, resolved.lightning),
            strategy=train["strategy"],
            nodes=len(gang.nodes),
            devices=train["devices"],
            rate=each / step_s if step_s > 0 else float("inf"),
            overhead_s=max(whole_s - steps * step_s, 0.0),
            epoch_samples=round(gang.steps_per_epoch * each),
        )
    ]


def _seen_s(gang: GangUsage) -> float | None:
    """From the first step to the last, as heartbeats of an earlier Trainwright had them; None without a step."""
    working = [node.working for node in gang.nodes if node.working is not None]
    stopped = [node.stopped for node in gang.nodes if node.stopped is not None]
    return max(stopped) - min(working) if working and stopped else None


def settings_of(train: Mapping[str, Any], lightning: Mapping[str, Any]) -> str:
    """A digest of the settings that decide how long a step takes, beside machine, ranks and strategy."""
    trainer = lightning.get("trainer") or {}
    named = {name: trainer.get(name) for name in ("precision", "accelerator")}
    return digest(
        [
            lightning.get("model"),
            lightning.get("optimizer"),
            named,
            [train["global_batch_size"], train.get("micro_batch_size")],
        ]
    )


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
