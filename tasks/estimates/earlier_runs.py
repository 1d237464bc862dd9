"""What a pipeline's earlier runs tell about the next one, each quantity with its least and its most.

How fast they trained, how long their stages took and what power they drew is read from their records. Time, energy and
carbon are pure functions of that; without a measurement, power is as the price book states it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import TrainwrightError
from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.resolved import Price, Resolved
from infra.store import Store
from infra.store.seal import pass_over
from infra.usage import executions_of
from tasks.costs.charges import Charge, charges
from tasks.costs.sums import JOULES_PER_KWH
from tasks.run.resolve import resolved_runs

# The newest runs of the pipeline that are read.
MOST_RUNS = 20
# How a generation ends that its machine ended.
_INTERRUPTED = ("preempted", "node_lost")
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


NONE = Span(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class PastPower:
    """What a node of a kind of machine needed during a stage of an earlier run, as its counters measured it."""

    stage: str
    machine: str
    watts: float


@dataclass(frozen=True)
class Energy:
    """The energy of what will run.

    Attributes:
        joules, grams: of what is known; grams are of CO2 equivalent.
        measured, stated: whether a part comes from earlier runs, or from the watts of the price book.
        unmetered: machines whose power is unknown; ungraded: those where the carbon intensity is unknown.
    """

    joules: Span = NONE
    grams: Span = NONE
    measured: bool = False
    stated: bool = False
    unmetered: frozenset[str] = frozenset()
    ungraded: frozenset[str] = frozenset()

    def __add__(self, other: Energy) -> Energy:
        return Energy(
            self.joules + other.joules,
            self.grams + other.grams,
            self.measured or other.measured,
            self.stated or other.stated,
            self.unmetered | other.unmetered,
            self.ungraded | other.ungraded,
        )

    @property
    def is_known(self) -> bool:
        """Whether the energy of any part is known."""
        return self.measured or self.stated

    def to_json(self) -> dict[str, object]:
        """For a program: null if a part is unknown, and the parts that are known beside it."""
        whole = self.is_known and not self.unmetered
        known = self.joules.to_json("known_joules") if self.is_known else {}
        energy = self.joules.to_json("energy_joules") if whole else {"energy_joules": None}
        graded = whole and not self.ungraded
        return {
            **energy,
            **(known if not whole else {}),
            **(self.grams.to_json("co2e_grams") if graded else {"co2e_grams": None}),
            "from": [name for name, is_so in (("measured", self.measured), ("price book", self.stated)) if is_so],
            "unmetered_machines": sorted(self.unmetered),
            "ungraded_machines": sorted(self.ungraded),
        }


def powers(charges: Iterable[Charge]) -> list[PastPower]:
    """The power of a node by stage and machine; nothing where a node's energy was not measured."""
    joules: dict[tuple[str, str], float] = {}
    seconds: dict[tuple[str, str], float] = {}
    unmeasured: set[tuple[str, str]] = set()
    for one in charges:
        place = one.stage, one.price.place
        seconds[place] = seconds.get(place, 0.0) + one.node_seconds
        if one.used.millijoules is not None:
            joules[place] = joules.get(place, 0.0) + one.used.millijoules / 1000
        elif one.estimable and one.node_seconds:
            unmeasured.add(place)
    return [
        PastPower(stage, machine, joules[stage, machine] / spent)
        for (stage, machine), spent in seconds.items()
        if (stage, machine) in joules and (stage, machine) not in unmeasured and spent > 0
    ]


def energy_of(stage: str, time: Span, nodes: Sequence[tuple[Price, int]], past: Sequence[PastPower]) -> Energy:
    """The energy of a stage that takes so long on numbers of nodes with these prices."""
    whole = Energy()
    for price, count in nodes:
        measured = [one.watts for one in past if (one.stage, one.machine) == (stage, price.place)]
        known = measured or ([] if price.watts is None else [price.watts])
        if not known:
            whole += Energy(unmetered=frozenset((price.place,)))
            continue
        joules = Span(
            time.expected * statistics.median(known) * count,
            time.least * min(known) * count,
            time.most * max(known) * count,
        )
        graded = price.g_per_kwh is not None
        whole += Energy(
            joules=joules,
            grams=joules.times((price.g_per_kwh or 0.0) / JOULES_PER_KWH),
            measured=bool(measured),
            stated=not measured,
            ungraded=frozenset(() if graded else (price.place,)),
        )
    return whole


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
        spot_s, interruptions: node-seconds of spot nodes, and how often one was taken away; start_s: of a generation.
        powers: of nodes, where they were measured.
        unreadable: runs whose records are damaged.
    """

    trainings: list[PastTraining] = field(default_factory=list)
    stages: list[PastStage] = field(default_factory=list)
    spot_s: float = 0.0
    interruptions: int = 0
    start_s: list[float] = field(default_factory=list)
    powers: list[PastPower] = field(default_factory=list)
    unreadable: int = 0


def past_of(store: Store, pipeline: str) -> Past:
    """What the newest runs of a pipeline took."""
    past = Past()
    for resolved in itertools.islice(resolved_runs(store, pipeline), MOST_RUNS):
        try:
            add(past, resolved, executions_of(store, resolved.run_id)[0])
        except TrainwrightError as error:  # a damaged record must not keep a plan from being made
            pass_over(error)
            past.unreadable += 1
    return past


def add(past: Past, resolved: Resolved, executions: Sequence[ExecutionUsage]) -> None:
    """Add what one run took."""
    raw_bytes = sum(one.bytes for one in resolved.files)
    for execution in executions:
        past.powers += powers(charges(execution))
        for stage in execution.stages:
            if stage.status == "ran":
                seconds = max(stage.ended - stage.began, 0.0)
                past.stages.append(PastStage(resolved.run_id, stage.name, seconds, raw_bytes))
        if execution.ended is not None and all(stage.status != "killed" for stage in execution.stages):
            inside = sum(max(stage.ended - stage.began, 0.0) for stage in execution.stages)
            between = max(execution.ended - execution.began - inside, 0.0)
            past.stages.append(PastStage(resolved.run_id, "", between, raw_bytes))
        gangs = [gang for gang in execution.gangs if gang.stage == "train" and gang.nodes]
        for gang in gangs:
            _add_interruptions(past, gang, resolved.price)
        trained = [stage for stage in execution.stages if stage.name == "train" and stage.status == "ran"]
        if len(gangs) == len(trained) == 1 and gangs[0].ended == "done":
            whole_s = trained[0].ended - trained[0].began
            past.trainings += _training(resolved, gangs[0], whole_s)


def _add_interruptions(past: Past, gang: GangUsage, price: Price) -> None:
    if price.term == "spot":
        past.spot_s += sum(max(node.released - node.started, 0.0) for node in gang.nodes)
        past.interruptions += gang.ended in _INTERRUPTED
    working = [node.working for node in gang.nodes if node.working is not None]
    if working:
        past.start_s.append(max(max(working) - min(node.started for node in gang.nodes), 0.0))


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
    rate = each / step_s if step_s > 0 else float("inf")
    return [
        PastTraining(
            run_id=resolved.run_id,
            machine=resolved.price.place,
            settings=settings_of(train, resolved.lightning),
            strategy=train["strategy"],
            nodes=len(gang.nodes),
            devices=train["devices"],
            rate=rate,
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
    sizes = [train["global_batch_size"], train.get("micro_batch_size")]
    return digest([lightning.get("model"), lightning.get("optimizer"), named, sizes])


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
