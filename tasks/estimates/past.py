"""The times of a pipeline's earlier runs, from their records: how fast they trained, and how long their stages took."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import TrainwrightError
from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.resolved import Price, Resolved
from infra.store import Store
from infra.store.seal import pass_over
from infra.usage import executions_of
from tasks.costs.charges import charges
from tasks.estimates.energy import PastPower, powers
from tasks.run.resolve import resolved_runs

# The newest runs of the pipeline that are read.
MOST_RUNS = 20
# How a generation ends that its machine ended.
_INTERRUPTED = ("preempted", "node_lost")


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
