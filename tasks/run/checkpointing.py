"""How often a training saves a checkpoint with `train.checkpoint: auto`, and what a plan says about it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.executions import ExecutionUsage
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.resolved import CheckpointInterval
from infra.checkpoint_interval import DAY_S, PastTrainings, expected_loss, interval, node_mtbf, past_trainings
from infra.store import Store, layout
from infra.usage import executions_of

# Without a measured checkpoint, and without a measured restart.
DEFAULT_S, RESTART_S = 600.0, 120.0
# A shorter interval saves nothing: the conductor sees checkpoints in heartbeats, and a bucket charges each request.
LEAST_S = 30.0
# The newest runs of the store that are read: a request or more for each.
MOST_RUNS = 50
# A spec's own interval is named if it loses this many times as much, and this much more of the time.
_WORSE, _MUCH = 1.5, 0.005
_UNITS = ((DAY_S, "d"), (3600.0, "h"), (60.0, "min"))


@dataclass(frozen=True)
class Outlook:
    """The interval that loses least, by the records of past runs.

    Attributes:
        every_s: the interval; loss: the share of the time that is expected to be lost with it.
        own_s, own_loss: the same for the spec's own interval; None if it is unknown, or equal to this interval. own:
          the field that sets the spec's own interval.
        why: the figures that the interval is computed from, as the rest of a sentence.
        is_measured: whether past runs measured a checkpoint; else `every_s` is the default, and nothing is expected.
    """

    every_s: float
    why: str
    is_measured: bool = False
    loss: float = 0.0
    own_s: float | None = None
    own_loss: float | None = None
    own: str = ""

    @property
    def line(self) -> str:
        """A sentence for a plan; without a measured checkpoint, about `auto` alone."""
        spacing = f"a checkpoint every {in_words(self.every_s)}"
        if not self.is_measured:
            return f"{spacing}, because {self.why}"
        best = f"{spacing} loses least (an expected {self.loss:.2%} of the time: {self.why})"
        if self.own_s is None or self.own_loss is None:
            return best
        if self.own_loss <= _WORSE * self.loss or self.own_loss - self.loss <= _MUCH:
            return best
        return f"{best}; {self.own} saves one about every {in_words(self.own_s)}, which loses {self.own_loss:.1%}"


def outlook(spec: PipelineSpec, past: PastTrainings) -> Outlook:
    """The interval that loses least for the trainings of a spec."""
    if not past.saves:
        return Outlook(DEFAULT_S, "no run of this pipeline has measured a checkpoint yet")
    nodes, stall_s = spec.train.nodes, past.stalled_s / past.saves
    mtbf_s = node_mtbf(past.failures, past.node_seconds) / nodes
    restart_s = past.restarting_s / past.restarts if past.restarts else RESTART_S
    every_s = max(interval(stall_s, mtbf_s), LEAST_S)
    own_s, own = _own_interval(spec, past)
    seen = "no failure" if not past.failures else "1 failure" if past.failures == 1 else f"{past.failures} failures"
    node_days = past.node_seconds / DAY_S
    gang = "a node fails" if nodes == 1 else f"one of {nodes} nodes fails"
    why = (
        f"a checkpoint stops the steps for {in_words(stall_s)}, and {gang} about once in {in_words(mtbf_s)}, from "
        f"{seen} in {node_days:{',.0f' if node_days >= 10 else '.2g'}} node-days and an assumed one in 150"
    )
    return Outlook(
        every_s,
        why,
        is_measured=True,
        loss=expected_loss(every_s, stall_s, mtbf_s, restart_s),
        own_s=own_s,
        own_loss=None if own_s is None else expected_loss(own_s, stall_s, mtbf_s, restart_s),
        own=own,
    )


def look(spec: PipelineSpec, store: Store) -> Outlook:
    """The interval that loses least, by the newest runs in a store. Records that cannot be read are not counted."""
    return outlook(spec, past_trainings(_past(store), spec.name, spec.train.pool or ""))


def resolve_interval(spec: PipelineSpec, store: Store) -> CheckpointInterval | None:
    """What `train.checkpoint: auto` stands for in a run that begins now; None if the spec does not ask for it."""
    if spec.train.checkpoint.every_s != "auto":
        return None
    found = look(spec, store)
    return CheckpointInterval(every_s=round(found.every_s, 1), why=found.why)


def in_words(seconds: float) -> str:
    """A length of time in the largest unit that gives at least 1, such as `14 min`."""
    unit_s, unit = next(((unit_s, unit) for unit_s, unit in _UNITS if seconds >= unit_s), (1.0, "s"))
    return f"{seconds / unit_s:.3g} {unit}"


def _own_interval(spec: PipelineSpec, past: PastTrainings) -> tuple[float | None, str]:
    """Seconds between checkpoints by the spec and the past speed of steps, or None; and the field that sets them."""
    own = spec.train.checkpoint
    if own.every_s == "auto":
        return None, ""
    steps = own.every_steps or (past.steps_per_epoch if own.every_s is None else 0)
    known = [] if own.every_s is None else [(own.every_s, f"the spec's checkpoint.every_s: {own.every_s:g}")]
    if steps and past.steps and past.stepping_s > 0:
        field = f"the spec's checkpoint.every_steps: {steps}" if own.every_steps else "each end of an epoch"
        known.append((steps * past.stepping_s / past.steps, field))
    return min(known, default=(None, ""))


def _past(store: Store) -> list[ExecutionUsage]:
    """The executions of the newest runs, oldest first."""
    found: list[ExecutionUsage] = []
    for run_id in [name for name in store.list(layout.runs()) if is_name(name)][-MOST_RUNS:]:
        with contextlib.suppress(CorruptError, UsageError):
            found += executions_of(store, run_id)[0]
    return found
