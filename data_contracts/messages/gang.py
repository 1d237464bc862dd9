"""What the conductor and the supervisors of a gang write for each other in the store.

| message | written by | read by | where |
|---|---|---|---|
| `Launch` | conductor | supervisor, rank | `g<g>/launch.json` in the store; the same file in a node's scratch |
| `Joined` | supervisor | conductor, other nodes | `node-<k>/joined.json` |
| `Meeting` | conductor | supervisors | `rollcall.json` |
| `Heartbeat` | supervisor | conductor | `node-<k>/beat-<n>.json` |
| `NodeExit` | supervisor | conductor | `node-<k>/exit.json` |
| `CancelMarker` | conductor | supervisors | `g<g>/cancel` |
| `Latest` | conductor | the next conductor, and everybody who lists checkpoints | the pointer `latest` |

Stores keep these files: a key that this version does not know is ignored, and a field that is missing has its default.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from data_contracts.canonical import StorePath
from data_contracts.costs.resources import NOTHING, GpuReading, Resources
from data_contracts.handoffs import Checkpoint, Dataset, Record, Ref
from data_contracts.messages.faults import PlannedFault
from data_contracts.messages.message import Message
from data_contracts.messages.ranks import RankEnd, RankReport
from data_contracts.replay import StopAt

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# More than any machine has; a larger number in a file is damage.
MOST_DEVICES = 1024


class Launch(Message, extra="ignore"):
    """The settings of one generation. Its defaults are the only ones: nobody else fills in a setting.

    Attributes:
        training: directory of the training, or of the remote job, in the store.
        generation, token: number of the generation, and its fencing token; see `for_generation`.
        entry: module of a rank.
        nodes: how many nodes should train.
        asked: how many the spec asks for; None in the launch that a training begins with.
        min_nodes: the fewest nodes that may train; None: all.
        devices: ranks of each node.
        left_out: hosts that take no part because they failed too often.
        heartbeat_s: interval of the nodes' heartbeats and the ranks' reports; `poll_s`: of all other checks.
        silence_s: a node without heartbeats for so long is lost. The other nodes then have 3 s to report what they
            know: 15 s in all.
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
        train: the spec's section, with the Lightning config inlined.
        targets: entries of a batch that metrics take for the truth.
        sealed: what every checkpoint holds as `train.json`: everything that a module is rebuilt from.
        provenance: of every checkpoint.
        traceparent: the span that launches it, for nodes and ranks; "" outside of a trace.
        errand: the job of a gang that runs a single job; see `infra.gang.remote_job`.
        fault: what a game day's ranks inject; see `training.fit.game_day_rank`.
    """

    training: StorePath
    generation: int = 0
    token: int = 0
    entry: str = "training.fit.rank"
    nodes: int = Field(ge=1)
    asked: int | None = Field(default=None, exclude_if=lambda asked: asked is None)
    min_nodes: int | None = Field(default=None, exclude_if=lambda least: least is None)
    devices: int = Field(ge=1, le=MOST_DEVICES)
    left_out: list[str] = []
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
    provenance: dict[str, Any] = {}
    traceparent: str = Field(default="", exclude_if=operator.not_)
    errand: dict[str, Any] | None = Field(default=None, exclude_if=operator.not_)
    fault: PlannedFault | None = Field(default=None, exclude_if=operator.not_)

    @property
    def asked_nodes(self) -> int:
        """How many nodes the spec asks for."""
        return self.nodes if self.asked is None else self.asked

    @property
    def least_nodes(self) -> int:
        """The smallest number of nodes that may train."""
        return self.nodes if self.min_nodes is None else min(self.nodes, self.min_nodes)

    @property
    def global_batch_size(self) -> int:
        """Rows of a step over all ranks; 0 where the section does not say."""
        return int(self.train.get("global_batch_size", 0))

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


class Meeting(Message, extra="ignore"):
    """Where the ranks meet, and the nodes in the order that numbers their ranks."""

    address: str
    port: int
    nodes: list[Joined]

    @property
    def order(self) -> list[int]:
        """The nodes' numbers."""
        return [joined.node for joined in self.nodes]


class Heartbeat(Message, extra="ignore"):
    """What a node publishes once per interval.

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


class NodeExit(Message, extra="ignore"):
    """How a node ended; the last thing that it writes.

    Attributes:
        error: what ended it, as `TrainwrightError.to_json` writes it; None if it is done.
        started, released: seconds since the epoch.
        used: by the node, without what its ranks' reports say.
        gpus: how many the node has; None if it does not know.
    """

    status: Literal["done", "failed"]
    error: dict[str, Any] | None = None
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
            no part any more.
        micro_batch: rows that a device takes at once after running out of memory; None: as the spec says.
        happened: sentences about these changes, for the report.
    """

    used: dict[str, Count] = {}
    failures: dict[str, Count] = {}
    left_out: list[str] = []
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
