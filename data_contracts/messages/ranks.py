"""What a rank writes for its node's supervisor, and what its node then keeps of it.

| message | written by | read by | where |
|---|---|---|---|
| `RankProcess`, `RankReport`, `RankAnswer` | rank | its supervisor | the rank's files, see `infra.gang.rank_files` |
| `RankReport`, `RankEnd` | supervisor | conductor | in a `Heartbeat` and in a `NodeExit` |

Stores keep heartbeats and exits: a key that this version does not know is ignored, and a field that is missing has its
default.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from data_contracts.costs.resources import Resources
from data_contracts.handoffs import Checkpoint, Record
from data_contracts.messages.message import Message


class RankProcess(Message):
    """The process of a rank."""

    rank: int
    pid: int


# Where a rank can be (`training.fit.reporting.rank_activity`). The time in the first three is its own work.
PLACES = (
    *("fetching", "forward", "stepping"),
    *("starting", "between", "backward", "collective", "checkpoint", "validation", "hooks"),
)
# Upper bounds, in seconds, of the classes that steps are counted in; a last class has what is longer.
STEP_BOUNDS = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
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
        spent_s: seconds in each place of `training.fit.reporting.rank_activity`.
        step_counts: steps whose length is in each class of STEP_BOUNDS, without zeros at the end; steps_s: their sum.
        loss: of the newest step; gradient_norm: of a recent step, before clipping, by rank 0; None: unknown.
        mfu: model FLOPs since the last report, as a share of the device's peak; None: unknown.
        memory_bytes: resident memory of the process; device_memory_bytes: the most that torch has allocated.
        saves: checkpoints that were written, failed_saves: or could not be; saving_s: from the copy to the seal.
        newest_saves: the last few of them.
    """

    spent_s: dict[str, _Amount] = {}
    step_counts: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=len(STEP_BOUNDS) + 1)
    steps_s: _Amount = 0.0
    loss: _Known | None = None
    gradient_norm: _Known | None = None
    mfu: _Known | None = None
    memory_bytes: int = Field(default=0, ge=0)
    device_memory_bytes: int | None = Field(default=None, ge=0)
    saves: int = Field(default=0, ge=0)
    failed_saves: int = Field(default=0, ge=0)
    saving_s: _Amount = 0.0
    newest_saves: list[Saved] = []


class RankReport(Message, extra="ignore"):
    """How far a rank is.

    Attributes:
        device: on which it computes, once it knows.
        checkpoints: the newest that were sealed, of `num_checkpoints` in this generation.
        wait_share: share of the time since the last report spent waiting for data.
        begun_with: what was loaded from `train.init_from`, in this generation; else "".
        micro_batch: rows that a device takes at once; 0 while unknown, and with the user's own loader.
        saving: whether a checkpoint is being saved; waits_for: why saving takes longer, or "".
        stalls, stalled_s: checkpoints of this generation for which steps waited, and for how long.
        place, place_s, moves, own_s, steps: where it is (see `training.fit.reporting.rank_activity`), and for how long.
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
