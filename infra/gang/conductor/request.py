"""The request that a conductor carries out, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from data_contracts.costs.usage import GangUsage
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch
from data_contracts.messages.ranks import TrainingSummary
from data_contracts.pipeline_spec import RetrySpec
from data_contracts.pipeline_spec.train import SelectSpec
from infra.gang.conductor.activity import OnMessage
from infra.gang.conductor.allowance import UNLIMITED, Allowance
from infra.gang.conductor.rank_reports import Progress
from infra.gang.conductor.replaying import Replay
from infra.gang.node.local import Room, Start
from infra.store.lease import PATIENCE_S


@dataclass(frozen=True)
class GangOutcome:
    """The result of conducting a training.

    Attributes:
        checkpoint: the checkpoint that was handed over.
        node_seconds: from launch to release, summed over the nodes of every generation that this conductor
            launched.
        generations: how many generations there have been, including other conductors'.
        summary: rank 0's, of the last generation; its defaults if this conductor did not train.
        happened: sentences about what makes this training differ from an undisturbed training.
    """

    checkpoint: Checkpoint
    node_seconds: float
    generations: int
    summary: TrainingSummary = field(default_factory=TrainingSummary)
    happened: list[str] = field(default_factory=list)

    @property
    def dropped_rows(self) -> int:
        """Rows of the last incomplete global batch, which training left out."""
        known = self.summary.dropped_rows
        return self.checkpoint.dropped_rows if known is None else known


@dataclass(frozen=True, kw_only=True)
class GangRequest:
    """What a training and a job on nodes have in common.

    Attributes:
        holder: who conducts; shown to another conductor that waits. `conduct` makes it unique.
        retry: how often each cause of failure is retried.
        rollcall_timeout_s: seconds within which the nodes of a generation must join.
        on_usage: called with what a generation's nodes used, once they are released.
        start: launches a node; None: as a process on this machine.
        room: admits all nodes of a generation, or none; held until the end. None: there is always room.
        allowance: what the nodes may use; a gang that may use no more ends with a checkpoint.
        secret: of the machines that may conduct the training, see `infra.gang.codes`; None: of this machine alone.
    """

    holder: str
    retry: RetrySpec
    rollcall_timeout_s: float
    on_usage: Callable[[GangUsage], None] = lambda usage: None
    start: Start | None = None
    room: Room | None = None
    allowance: Allowance = UNLIMITED
    secret: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(GangRequest):
    """A training to conduct.

    Attributes:
        launch: the settings of every generation.
        keep: how many of the newest checkpoints are kept, besides the one that `select` prefers.
        select: which checkpoint is handed over; None: the last.
        from_step: resume from the committed checkpoint of this step; later checkpoints are set aside.
        replay: how an earlier training went, to be made again in the same way; see `infra.gang.conductor.replaying`.
        on_progress: called with each progress report.
        on_launch: called with the launch of each generation, and with a function that returns what its nodes have used.
        on_message: called with each heartbeat, or end, of a node by its number, after the conductor has acted on it.
        patience_s: how long another conductor's lease must stand still before it is taken over.
    """

    launch: Launch
    keep: int
    select: SelectSpec | None
    from_step: int | None = None
    replay: Replay | None = None
    on_progress: Callable[[Progress], None] = lambda progress: None
    on_launch: Callable[[Launch, Callable[[], GangUsage]], None] = lambda launch, usage: None
    on_message: OnMessage = lambda node, message: None
    patience_s: float = PATIENCE_S

    @property
    def training(self) -> str:
        """The training's directory in the store."""
        return self.launch.training
