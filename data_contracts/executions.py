"""The executions of a run: the processes that carry it out, what followed when one of them died, their use of time.

The use of time says when the process worked on which stage, and what the nodes that it launched did when. All its times
are seconds since the epoch by the clock of the process that carries the run out, so they fit together.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from data_contracts.costs import Resources
from data_contracts.records import HandOff, Record
from data_contracts.resolved import UNKNOWN_PRICE, Price, StoreRates
from data_contracts.run_report import StageStatus

# The machine that carries a run out, as a place beside the sections whose nodes may be elsewhere.
HERE = "here"


class Execution(HandOff):
    """A process that carries a run out: written when it has taken the run's lease, before it does anything else.

    Attributes:
        token: the lease's fencing token, which tells this execution from all others of the run.
        ends: how often the run had ended before, without a final verdict.
        flow_run: id of its flow run in Prefect; None if it has none.
    """

    run_id: str
    token: int
    ends: int
    flow_run: str | None = None
    started: str = ""


class RunNames(HandOff):
    """What the records of a run name: written last by each process that has carried the run out to an end.

    Attributes:
        covers: the records of the run that this says it of, and the run's trigger, with their sizes in bytes.
        names: the URIs and ids in these records, as gc finds them.
    """

    covers: dict[str, int]
    names: list[str]


class Crash(HandOff):
    """A process that died over a run, and that its run is resumed; the budget `retry.crashed` counts these.

    Attributes:
        n: from 0; created once, so two reapers cannot answer one crash twice.
        token: the newest fencing token before the resuming process takes the lease.
        ends: how often the run had ended before. Any end begins a new budget.
        flow_run, run_count: the flow run that died, and how often Prefect had begun it.
        by: who found it.
    """

    run_id: str
    n: int
    token: int
    ends: int
    flow_run: str | None = None
    run_count: int = Field(default=0, exclude_if=lambda count: not count)
    at: str
    by: str


def resume_key(run_id: str, n: int) -> str:
    """Prefect's idempotency key of the request after crash `n`: the same for two reapers that answer one crash."""
    return f"reap/{run_id}/{n}"


class BackfilledWindow(HandOff):
    """A window of the data that a backfill has begun, or its run's verdict. Times are UTC, ISO 8601."""

    start: str
    end: str
    run_id: str | None = None
    verdict: str | None = None
    by: str
    at: str


class ScheduledTime(HandOff):
    """A time of a schedule that has its run; kept when the run is deleted. `key` is the run's idempotency key."""

    key: str
    run_id: str
    at: str


@dataclass(frozen=True)
class FlowRunState:
    """What Prefect says of a flow run.

    Attributes:
        state: `gone`: unknown there, or there is none; `ended`: it failed, crashed or completed; `cancelled`: it was
            cancelled or is about to be; `stopped`: it waits for a person; `asked`: it waits for a worker; `running`: as
            far as is known.
        run_count: how often it was begun.
    """

    state: Literal["gone", "ended", "cancelled", "stopped", "asked", "running"]
    run_count: int = 0


# Some thousand years before and after: a number beyond is not a time of ours, and no calendar has it.
Moment = Annotated[float, Field(ge=-6e10, le=2e11)]
LONGEST_S = 2e11
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
Number = Annotated[int, Field(ge=0, le=2**63)]


class NodeUsage(Record):
    """One node from its launch to its release.

    Attributes:
        joined: when it had answered the roll-call; None if it never did.
        working, stopped: when its first step and its last step were seen; None without a step.
        waited_s, saved_s: of the time between them, what was spent waiting for data, and for checkpoints to be copied.
        used: by the node and its ranks beside time; None if they did not say.
        gpus: how many the node has; None if it did not say.
    """

    number: Number
    started: Moment
    released: Moment
    joined: Moment | None = None
    working: Moment | None = None
    stopped: Moment | None = None
    waited_s: Seconds = 0.0
    saved_s: Seconds = 0.0
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)
    gpus: int | None = Field(default=None, ge=0, exclude_if=lambda number: number is None)


class GangUsage(Record):
    """The nodes of one generation of a training, or of a job on nodes.

    Attributes:
        where: the training, or the job, in the store; with `generation` it names one launch.
        local: whether the nodes are processes on the machine that carries the run out.
        met: when all nodes had answered the roll-call; None if they never had.
        ended: `done`, or the cause of its end.
        first_step, last_step: the step that it resumed from, and the last that was seen.
        kept_step: the last step that a later generation need not do again.
        samples: consumed by the training up to `last_step`; steps_per_epoch: 0 if unknown.
        stepping_s: from the end of its first step to the end of its last epoch, as rank 0 measured it; 0 if unknown.
        saves: checkpoints for which steps waited, `saved_s` of each node in all; 0 if unknown.
    """

    stage: str
    where: str
    generation: Number
    local: bool
    nodes: list[NodeUsage]
    met: Moment | None = None
    ended: str = "done"
    first_step: Number = 0
    last_step: Number = 0
    kept_step: Number = 0
    samples: Number = Field(default=0, exclude_if=operator.not_)
    steps_per_epoch: Number = Field(default=0, exclude_if=operator.not_)
    stepping_s: Seconds = Field(default=0.0, exclude_if=operator.not_)
    saves: Number = Field(default=0, exclude_if=operator.not_)


class StageUsage(Record):
    """The time that the run's process spent on one stage; `killed`: the process died meanwhile.

    Attributes:
        used: by the process and its children meanwhile, beside time.
    """

    name: str
    began: Moment
    ended: Moment
    status: StageStatus | Literal["killed"]
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)


class Followed(Record):
    """A training or job in the store whose nodes an execution may launch; `local`: on its own machine."""

    stage: str
    where: str
    local: bool


class ExecutionHeartbeat(Record):
    """A heartbeat of an execution, renewed while it works: when, on which stage, what it follows and used."""

    at: Moment
    stage: str = ""
    follows: list[Followed] = Field(default_factory=list)
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)


class ExecutionUsage(HandOff):
    """One process that carried a run out, from its start to its end.

    Attributes:
        execution: names it in the run.
        prices: what a node costs, by section; `here`: the machine of this process.
        began, ended: of the process; `ended` is None in the record of its start.
        stages: in order; gangs: every generation that it launched.
        used: by the process and its children beside time, stages included; not by nodes.
        rates: what the store costs; None if it is unknown.
        machine: which one the process is on, the same name for all runs there; "" if it is unknown.
    """

    run_id: str
    execution: str
    pipeline: str
    model: str
    tags: dict[str, str]
    prices: dict[str, Price]
    began: Moment
    ended: Moment | None = None
    stages: list[StageUsage] = Field(default_factory=list)
    gangs: list[GangUsage] = Field(default_factory=list)
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)
    rates: StoreRates | None = Field(default=None, exclude_if=lambda rates: rates is None)
    machine: str = Field(default="", exclude_if=operator.not_)

    def price_of(self, section: str) -> Price:
        """What a node of a section costs; a section without a price of its own works on this machine."""
        return self.prices.get(section) or self.prices.get(HERE) or self.prices.get("train") or UNKNOWN_PRICE
