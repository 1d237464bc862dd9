"""What the conductor, the supervisors and the ranks of a gang write for each other.

| message | written by | read by | where |
|---|---|---|---|
| `Launch` | conductor | supervisor, rank | `g<g>/launch.json` in the store; the same file in a node's scratch |
| `Joined`, `Heartbeat` | supervisor | conductor | the connection, see `infra.gang.hub` |
| `Place` | conductor | supervisor | the connection |
| `NodeExit` | supervisor | conductor, people | the connection, and `node-<k>/exit.json` |
| `CancelMarker` | conductor | supervisors | the connection, and `g<g>/cancel` |
| `Meeting`, `GangBeat` | conductor | people | `rollcall.json`, `g<g>/beat-<n>.json` |
| `Latest` | conductor | the next conductor, and everybody who lists checkpoints | the pointer `latest` |
| `RankProcess`, `RankReport`, `RankAnswer` | rank | its supervisor | the rank's files, see `infra.gang.rank_files` |
| `RankReport`, `RankEnd` | supervisor | conductor | in a `Heartbeat` and in a `NodeExit` |
| `Segment` | rank 0 | `reproduce` | `generations` in the provenance of every checkpoint |
| `StopAt` | a conductor that replays a training | the ranks | in a `Launch` |
| `GameTraining` | conductor of a game day | a training of it | argument of the process |
| `PlannedFault` | conductor of a game day | the ranks | in a `Launch` |
| `InjectedFault` | the rank, before it injects it | other ranks, game day | `game-day/injected.json` of the training |
| `StepAfter` | rank 0 of a later generation | game day | `game-day/first.json`, `game-day/caught-up.json` |

Stores keep these files: a key that this version does not know is ignored, and a field that is missing has its default.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, Literal, Self, TypedDict, cast

from pydantic import Field, model_validator

from data_contracts.canonical import StorePath
from data_contracts.costs import NOTHING, GpuReading, Resources
from data_contracts.handoffs import Checkpoint, Dataset, Record, Ref
from data_contracts.messages import Message
from data_contracts.records import Error

# Where a rank can be (`training.fit.reports`). The time in the first three is its own work.
PLACES = (
    *("fetching", "forward", "stepping"),
    *("starting", "between", "backward", "collective", "checkpoint", "validation", "hooks"),
)
# Upper bounds, in seconds, of the classes that steps are counted in; a last class has what is longer.
STEP_BOUNDS = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
# Heartbeats that a conductor hears in a second, however many nodes there are.
BEATS_PER_S = 250
# In a gang of at most so many nodes, each probes its links to all others.
FEW = 16
# More than any machine has; a larger number in a file is damage.
MOST_DEVICES = 1024


class MachineFacts(Record, extra="ignore"):
    """The facts of a machine and its libraries that decide the bits of a training.

    Attributes:
        cpu: the model's name; flags: a digest of the CPU's flags.
        device: on which rank 0 computes, with the model of a GPU.
        build: a digest of how torch was built; vector: the vector instructions that it uses.
        threads: of a rank.
    """

    system: str = ""
    machine: str = ""
    cpu: str = ""
    flags: str = ""
    libc: str = ""
    python: str = ""
    torch: str = ""
    lightning: str = ""
    build: str = ""
    vector: str = ""
    device: str = ""
    threads: int = 0


class Segment(Record, extra="ignore"):
    """The steps of a training that one generation did, from the checkpoint that it resumed from.

    The segment ends where the next one begins; the last one ends with the checkpoint that holds the list.

    Attributes:
        training: directory of the attempt; generation: its number in it.
        first_step: the step of the checkpoint that it resumed from; 0 if it began the training.
        resumed_from: the id of that checkpoint; None if it began the training.
        has_held_loss: whether that checkpoint has the loss on a held batch, as the last one of a generation has.
        nodes, devices: nodes, and ranks of each node.
        micro_batch: rows that a device takes at once; 0 with the user's own loader.
        shard_ranks: `train.shard_ranks`, which makes the mesh of a strategy that shards and replicates.
        skip: samples (from, to) that it skipped.
    """

    training: str
    generation: int
    first_step: int = Field(ge=0)
    resumed_from: str | None = None
    has_held_loss: bool = Field(default=False, alias="held")
    nodes: int = Field(ge=1)
    devices: int = Field(ge=1)
    strategy: str = ""
    micro_batch: int = Field(default=0, ge=0)
    shard_ranks: int | None = None
    skip: list[tuple[int, int]] = Field(default_factory=list)
    facts: MachineFacts = MachineFacts()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.devices


class StopAt(Record):
    """Where a generation that replays another one ends: as if it had been asked to stop after this step.

    Attributes:
        may_be_last: whether the checkpoint is saved as the last one of a generation that was asked to stop, for which
            the loss on a held batch is recorded.
    """

    step: int = Field(ge=1)
    may_be_last: bool = Field(default=False, exclude_if=operator.not_)


FaultName = Literal[
    "rank-killed",
    "rank-stopped",
    "rank-hung",
    "rank-asked-to-stop",
    "node-killed",
    "node-stopped",
    "conductor-killed",
    "checkpoint-damaged",
]


class PlannedFault(Record, extra="ignore"):
    """A fault to inject once.

    Attributes:
        every_steps: between two checkpoints; the fault comes in the middle.
        checkpoints: how many must be committed before.
        wait_s: how long a step waits for them; then the fault comes after a later checkpoint.
    """

    name: FaultName
    every_steps: int = Field(ge=2)
    checkpoints: int = Field(default=1, ge=1)
    wait_s: float = Field(default=20.0, ge=0, allow_inf_nan=False)


class GameTraining(Message):
    """A short training that a game day begins or continues.

    Attributes:
        spec: path of the YAML file; overrides: with those of the game day itself.
        store: address of the game day's own store.
        fresh: begin a new training; False continues the newest one, whose conductor was killed.
    """

    spec: str
    overrides: list[str]
    window: str | None
    store: str
    fault: PlannedFault | None
    fresh: bool


class InjectedFault(Message, extra="ignore"):
    """A fault that is injected now.

    Attributes:
        generation, rank, node, host: where.
        step: the last step that was taken before.
        checkpoint: URI of the newest committed checkpoint.
    """

    name: FaultName
    generation: int
    rank: int
    node: int
    host: str
    step: int
    checkpoint: str


class StepAfter(Message, extra="ignore"):
    """A step of a generation that began after the fault.

    Attributes:
        resumed_from: the step from which its generation continued.
    """

    generation: int
    step: int
    resumed_from: int


class RankProcess(Message):
    """The process of a rank."""

    rank: int
    pid: int


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Known = Annotated[float, Field(allow_inf_nan=False)]


class Saved(Record, extra="ignore"):
    """A checkpoint that a rank saved, or could not: from the copy to the seal, in seconds since the epoch."""

    step: int
    began: _Known
    ended: _Known
    sealed: bool


class RankMeasures(Record, extra="ignore"):
    """What a rank has measured of its training in this generation, for those who watch it; nothing decides by it.

    Attributes:
        spent_s: seconds in each place of `training.fit.reports`.
        step_counts: steps whose length is in each class of STEP_BOUNDS, without zeros at the end; steps_s: their sum.
        loss: of the newest step; gradient_norm: of a recent step, before clipping, by rank 0; None: unknown.
        mfu: model FLOPs since the last report, as a share of the device's peak; None: unknown.
        memory_bytes: resident memory of the process; device_memory_bytes: the most that torch has allocated.
        saves: checkpoints that were written, failed_saves: or could not be; saving_s: from the copy to the seal.
        newest_saves: the last few of them.
    """

    spent_s: dict[str, Seconds] = {}
    step_counts: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=len(STEP_BOUNDS) + 1)
    steps_s: Seconds = 0.0
    loss: _Known | None = None
    gradient_norm: _Known | None = None
    mfu: _Known | None = None
    memory_bytes: int = Field(default=0, ge=0)
    device_memory_bytes: int | None = Field(default=None, ge=0)
    saves: int = Field(default=0, ge=0)
    failed_saves: int = Field(default=0, ge=0)
    saving_s: Seconds = 0.0
    newest_saves: list[Saved] = []


class RankReport(Message, extra="ignore"):
    """How far a rank is.

    Attributes:
        device: on which it computes, with the model of a GPU; "" until it knows.
        checkpoints: the newest that were sealed, of `num_checkpoints` in this generation.
        wait_share: share of the time since the last report spent waiting for data.
        begun_with: what was loaded from `train.init_from`, in this generation; else "".
        micro_batch: rows that a device takes at once; 0 while unknown, and with the user's own loader.
        saving: whether a checkpoint is being saved; waits_for: why saving takes longer, or "".
        stalls, stalled_s: checkpoints of this generation for which steps waited, and for how long.
        place, place_s, moves, own_s, steps: where it is (see `training.fit.reports`), and for how long.
        used: by its process, since its beginning.
        measured: what it has measured beside; None if it does not say.
        state: letter of its process's state (`T`: stopped); only in a heartbeat.
    """

    rank: int
    device: str = ""
    phase: Literal["starting", "training", "done"] = "starting"
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = {}
    checkpoints: list[Checkpoint] = []
    num_checkpoints: int = 0
    wait_share: float = 0.0
    begun_with: str = ""
    micro_batch: int = 0
    saving: bool = False
    waits_for: str = ""
    stalls: int = Field(default=0, ge=0, exclude_if=operator.not_)
    stalled_s: float = Field(default=0.0, ge=0, exclude_if=operator.not_)
    place: str = "between"
    place_s: float = 0.0
    moves: int = 0
    own_s: float = 0.0
    steps: int = 0
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)
    measured: RankMeasures | None = Field(default=None, exclude_if=lambda measured: measured is None)
    state: str = Field(default="", exclude_if=operator.not_)


class TrainingSummary(Record, extra="ignore"):
    """How a training went, as each rank answers at its end; the plan's fields are 0 with the user's own loader.

    Attributes:
        dropped_rows: rows of the last incomplete global batch, which training left out; None if unknown.
        wait_share: share of the training's time that the rank waited for data.
        wait_cause: what took longest in preparing the data.
        begun_with: what was and was not loaded from `train.init_from`; "" without `init_from`.
        ended_early: whether a callback ended it before its last epoch and step, as early stopping and `max_time` do.
        stepping_s: from the end of the first step to the end of the last epoch, by the rank's own clock.
    """

    num_rows: int = 0
    global_batch: int = 0
    world_size: int = 0
    micro_batch: int = 0
    accumulate: int = 0
    steps_per_epoch: int = 0
    dropped_rows: int | None = None
    wait_share: float = 0.0
    wait_cause: str = ""
    begun_with: str = ""
    ended_early: bool = Field(default=False, exclude_if=operator.not_)
    stepping_s: float = Field(default=0.0, ge=0, exclude_if=operator.not_)


class RankAnswer(Message, extra="ignore"):
    """A rank's answer at its end.

    Attributes:
        checkpoint: the last one; rank 0 alone names it.
        plan: of a training, a `TrainingSummary`; of a remote job, the child's answer.
    """

    checkpoint: Checkpoint | None = None
    plan: dict[str, Any] = {}


class RankEnd(Record, extra="ignore"):
    """What a rank left: its last report and its answer, if it wrote them, and its stacks, if they were taken."""

    rank: int
    report: RankReport | None = None
    done: RankAnswer | None = None
    stack: str = ""


class RankLayout(TypedDict, total=False):
    """How ranks share the parameters, as fields of the spec's section `train`."""

    strategy: str
    shard_modules: list[str] | int | None
    shard_ranks: int | None
    collective_timeout_s: float


class TrainSettings(RankLayout, total=False):
    """What conductors read of the spec's section `train`, with the Lightning config inlined."""

    lightning: dict[str, Any]
    global_batch_size: int
    micro_batch_size: int | None


class ConductorAddress(Record, extra="ignore"):
    """Where the nodes of a generation reach their conductor.

    Attributes:
        certificate: as PEM; the nodes trust no other.
    """

    address: str
    port: int = Field(ge=1, le=65535)
    certificate: str


class Launch(Message, extra="ignore"):
    """The settings of one generation. Its defaults are the only ones: nobody else fills in a setting.

    Attributes:
        training: directory of the training, or of the remote job, in the store.
        generation, token: number of the generation, and its fencing token; see `for_generation`.
        entry: module of a rank.
        nodes: how many nodes should train.
        nodes_in_spec: how many the spec asks for; None in the launch that a training begins with.
        min_nodes: the fewest nodes that may train; None: all.
        devices: ranks of each node.
        left_out: hosts that take no part: they failed too often, are drained, or broke. withdrawn: those that broke, in
            whose place other machines are asked for.
        conductor: where the nodes reach it; None in the launches of earlier versions, whose nodes wrote to the store.
        heartbeat_s: interval of the nodes' heartbeats and the ranks' reports; `poll_s`: of all other checks.
        silence_s: a node without heartbeats for so long is lost. The other nodes then have 3 s to report what they
            know: 15 s in all. A process that runs on the conductor's machine has five times as long.
        lease_silence_s: nodes end when the conductor's lease stands still for so long.
        hang_s: a rank without progress for so long is hung; `stall_s`: the same before its first step and while a
            checkpoint is saved.
        grace_s: time for a checkpoint after SIGTERM.
        withhold: whether what the ranks print stays on their machine; see `infra.child.run_module`.
        code: the bundle of the user's code; None: there is none.
        dataset: what is trained on; None with `data: external`. `mixture`: datasets whose rows are mixed in, by name.
        init_from: the checkpoint or import that gives the module its first weights.
        begin: the checkpoint of an earlier attempt, used until this training has committed its own.
        resume: the checkpoint to resume from.
        skip: samples (from, to) that are skipped, because a training with them diverged.
        stop: where it ends; None: with the training.
        threads: of a rank; None: this machine's cores, divided among its ranks.
        train: the spec's section, with the Lightning config inlined, which each rank checks as a `TrainSpec`; of a
            remote job's ranks, a `RankLayout`. Read it by `settings`.
        targets: entries of a batch that metrics take for the truth.
        sealed: what every checkpoint holds as `train.json`: everything that a module is rebuilt from.
        provenance: of every checkpoint.
        traceparent: the span that launches it, for nodes and ranks; "" outside of a trace.
        remote_job: the job of a gang that runs a single job; see `infra.gang.remote_job`.
        fault: what a game day's ranks inject; see `training.fit.game_day_rank`.
    """

    training: StorePath
    generation: int = 0
    token: int = 0
    entry: str = "training.fit.rank"
    nodes: int = Field(ge=1)
    nodes_in_spec: int | None = Field(default=None, alias="asked", exclude_if=lambda nodes: nodes is None)
    min_nodes: int | None = Field(default=None, exclude_if=lambda least: least is None)
    devices: int = Field(ge=1, le=MOST_DEVICES)
    left_out: list[str] = []
    withdrawn: list[str] = Field(default=[], exclude_if=operator.not_)
    conductor: ConductorAddress | None = Field(default=None, exclude_if=lambda address: address is None)
    heartbeat_s: Seconds = 1.0
    poll_s: Seconds = 0.1
    silence_s: Seconds = 12.0
    lease_silence_s: Seconds = 60.0
    hang_s: Seconds = 45.0
    stall_s: Seconds = 1800.0
    grace_s: Seconds = 30.0
    withhold: bool = Field(default=False, exclude_if=operator.not_)
    code: Ref | None = None
    dataset: Dataset | None = None
    mixture: dict[str, Dataset] = {}
    init_from: Ref | None = None
    begin: Checkpoint | None = None
    resume: Checkpoint | None = None
    skip: list[tuple[int, int]] = []
    stop: StopAt | None = Field(default=None, exclude_if=operator.not_)
    threads: int | None = Field(default=None, ge=1, exclude_if=operator.not_)
    train: dict[str, Any] = {}
    targets: list[str] = Field(default=[], exclude_if=operator.not_)
    sealed: dict[str, Any] = {}
    provenance: dict[str, object] = {}
    traceparent: str = Field(default="", exclude_if=operator.not_)
    remote_job: dict[str, object] | None = Field(default=None, alias="errand", exclude_if=operator.not_)
    fault: PlannedFault | None = Field(default=None, exclude_if=operator.not_)

    @property
    def settings(self) -> TrainSettings:
        """`train`, typed; a store of an earlier version may lack a key."""
        return cast(TrainSettings, self.train)

    @property
    def beat_s(self) -> float:
        """Interval of a node's heartbeats: a conductor hears at most BEATS_PER_S of them."""
        return max(self.heartbeat_s, self.nodes / BEATS_PER_S)

    @property
    def asked_nodes(self) -> int:
        """How many nodes the spec asks for."""
        return self.nodes if self.nodes_in_spec is None else self.nodes_in_spec

    @property
    def least_nodes(self) -> int:
        """The smallest number of nodes that may train."""
        return self.nodes if self.min_nodes is None else min(self.nodes, self.min_nodes)

    @property
    def global_batch_size(self) -> int:
        """Rows of a step over all ranks; 0 where the section does not say."""
        return self.settings.get("global_batch_size", 0)

    @property
    def code_digest(self) -> str | None:
        """Digest of the user's code as the reuse key has it; None if nothing was sealed with it."""
        return self.sealed.get("code_digest")

    @property
    def run_id(self) -> str:
        """The run that launched this generation."""
        return str(self.provenance["run_id"])

    def for_generation(self, number: int, token: int, resume: Checkpoint | None = None) -> Launch:
        """The launch of generation `number` with these settings."""
        return self.model_copy(update={"generation": number, "token": token, "resume": resume})


class Joined(Message, extra="ignore"):
    """A node's answer to the roll-call.

    Attributes:
        port: of the rendezvous, if this node becomes the first.
        pid, instance: the supervisor's process, and the mark that no other process carries.
        time: seconds since the epoch.
        links: the port on which the other nodes probe whether they reach this one; None in a gang of one node.
    """

    node: int
    address: str
    port: int
    host: str = ""
    pid: int = 0
    instance: str = ""
    time: float = 0.0
    links: int | None = Field(default=None, exclude_if=lambda port: port is None)


class Place(Message, extra="ignore"):
    """Where a node's ranks meet the others.

    Attributes:
        address, port: of the rendezvous, on the first node.
        nodes: how many take part; place: of this node among them, which numbers its ranks.
        on_host: how many of them are on this node's machine.
        peers: the nodes to which this one probes its links.
    """

    address: str
    port: int
    nodes: int
    place: int
    on_host: int
    peers: list[Joined]


class Meeting(Message, extra="ignore"):
    """Where the ranks meet, and the nodes in the order that numbers their ranks."""

    address: str
    port: int
    nodes: list[Joined]

    @property
    def order(self) -> list[int]:
        """The nodes' numbers."""
        return [joined.node for joined in self.nodes]

    def places(self) -> dict[int, Place]:
        """What each node is told, by its number. A node probes those at distances 1, 2, 4, … of the order as a ring."""
        on_host, count = Counter(joined.host for joined in self.nodes), len(self.nodes)
        distances = [2**power for power in range((count - 1).bit_length())] if count > FEW else range(1, count)
        return {
            joined.node: Place(
                address=self.address,
                port=self.port,
                nodes=count,
                place=place,
                on_host=on_host[joined.host],
                peers=[self.nodes[(place + distance) % count] for distance in distances],
            )
            for place, joined in enumerate(self.nodes)
        }


class Heartbeat(Message, extra="ignore"):
    """What a node says once per interval.

    Attributes:
        time: seconds since the epoch.
        ranks: the newest report of each rank that has written one.
        unreachable: nodes that this node cannot connect to.
        used: by the node so far, without what its ranks' reports say.
        sensors: of the node's GPUs; empty without NVML.
    """

    time: float = 0.0
    ranks: list[RankReport] = []
    unreachable: list[int] = []
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)
    sensors: list[GpuReading] = Field(default=[], exclude_if=operator.not_)


class RankSeen(Record, extra="ignore"):
    """How far a rank was."""

    rank: int
    step: int
    device: str = ""


class NodeBeat(Record, extra="ignore"):
    """What the conductor knew of a node by its newest heartbeat; the fields are as there."""

    node: int
    time: float
    ranks: list[RankSeen] = []
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)

    @classmethod
    def of(cls, node: int, beat: Heartbeat) -> NodeBeat:
        """What is kept of a heartbeat."""
        return cls(node=node, time=beat.time, ranks=seen_in(beat), used=used_by_node(beat))


class GangBeat(Message, extra="ignore"):
    """What a conductor knows of its nodes; for those who look at the store.

    Attributes:
        time: seconds since the epoch.
    """

    time: float = 0.0
    nodes: list[NodeBeat] = []


class NodeExit(Message, extra="ignore"):
    """How a node ended; the last thing that it writes.

    Attributes:
        error: what ended it, as `TrainwrightError.to_json` writes it; None if it is done.
        started, released: seconds since the epoch.
        used: by the node, without what its ranks' reports say.
        gpus: how many the node has; None if it does not know.
    """

    status: Literal["done", "failed"]
    error: Error | None = None
    started: float = 0.0
    released: float = 0.0
    ranks: list[RankEnd] = []
    used: Resources | None = Field(default=None, exclude_if=lambda used: used is None)
    gpus: int | None = Field(default=None, ge=0, exclude_if=lambda number: number is None)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.status == "failed") != (self.error is not None):
            raise ValueError("status and error do not agree")
        if self.error is not None and not (
            isinstance(self.error.get("cause"), str) and isinstance(self.error.get("details", {}), dict)
        ):
            raise ValueError("error is not an error as it is written")
        if self.status == "done" and not (self.ranks and all(rank.done is not None for rank in self.ranks)):
            raise ValueError("a rank has no answer")
        return self


def reports_of(message: Heartbeat | NodeExit) -> list[RankReport]:
    """The newest report of each rank of a node that wrote one."""
    if isinstance(message, Heartbeat):
        return message.ranks
    return [end.report for end in message.ranks if end.report is not None]


def seen_in(message: Heartbeat | NodeExit) -> list[RankSeen]:
    """How far the ranks of a node were."""
    return [RankSeen(rank=one.rank, step=one.step, device=one.device) for one in reports_of(message)]


def used_by_node(message: Heartbeat | NodeExit) -> Resources | None:
    """What a node and its ranks have used, as its newest message says; None if it does not say."""
    known = [each for each in (message.used, *(report.used for report in reports_of(message))) if each is not None]
    return sum(known, NOTHING) if known else None


class Aside(Record, extra="ignore"):
    """A checkpoint that left the ledger because someone went back to an earlier step, with the reason."""

    checkpoint: Checkpoint
    reason: str


Count = Annotated[int, Field(ge=0)]


class Retries(Record, extra="ignore"):
    """What the failures of a training have used up and changed, across its conductors.

    Attributes:
        used: how often each cause was retried, by its key in `retry`.
        failures: how often each node failed, by its name in `infra.gang.recovery`; left_out: nodes that take
            no part any more; withdrawn: machines that broke, in whose place others are asked for.
        micro_batch: rows that a device takes at once after running out of memory; None: as the spec says.
        happened: sentences about these changes, for the report.
    """

    used: dict[str, Count] = {}
    failures: dict[str, Count] = {}
    left_out: list[str] = []
    withdrawn: dict[str, float] = Field(default={}, exclude_if=operator.not_)
    micro_batch: int | None = Field(default=None, ge=1)
    happened: list[str] = []


class Latest(Message, extra="ignore"):
    """What a training's pointer `latest` holds; `infra.gang.ledger` says what each field is for.

    Attributes:
        token: the fencing token of the conductor that may move the pointer.
        checkpoints: those that are committed and kept, oldest first.
        broken: directory of each checkpoint that is still to be marked as quarantined, with the reason.
        settled: the last generation of an earlier conductor whose checkpoints were adopted; those that it seals later
            are never read. None: none.
    """

    token: int
    checkpoints: list[Checkpoint]
    retiring: list[StorePath] = []
    aside: list[Aside] = []
    skipped: list[tuple[int, int]] = Field(default=[], exclude_if=operator.not_)
    broken: list[tuple[StorePath, str]] = Field(default=[], exclude_if=operator.not_)
    handed_over: Checkpoint | None = Field(default=None, exclude_if=lambda checkpoint: checkpoint is None)
    retries: Retries = Field(default=Retries(), exclude_if=lambda retries: retries == Retries())
    settled: int | None = Field(default=None, exclude_if=lambda generation: generation is None)


class CancelMarker(Message, extra="ignore"):
    """The end of a generation, with its cause.

    Attributes:
        stacks: whether the nodes save their ranks' stacks before they kill them.
        saves: whether the ranks save one consistent checkpoint and end by themselves, as after SIGTERM.
    """

    cause: str = ""
    stacks: bool = Field(default=False, exclude_if=operator.not_)
    saves: bool = Field(default=False, exclude_if=operator.not_)
