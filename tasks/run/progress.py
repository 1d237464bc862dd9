"""Reports a stage's progress to listeners, in the same words in the terminal and in Prefect.

Of a training these are its step, samples a second, the time left and the cost, from its conductor's reports.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from data_contracts.executions import GangUsage
from data_contracts.messages.gang import Heartbeat, Launch, NodeExit
from data_contracts.messages.raw_data import ShardProgress
from data_contracts.run_report import Cost, StageResult
from infra.gang.ledger import RankStatus
from infra.gang.members import Progress
from infra.quantities import in_two_units

# Samples per second are measured over this time: with a shorter time, the time left jumps; with a longer one, it lags.
WINDOW_S = 15.0
SHOWN_METRICS = 3
# With any of these, an epoch is shorter than its rows, or the training ends at a set time.
_CUTS_SHORT = ("limit_train_batches", "overfit_batches", "max_time", "fast_dev_run")
_CLEAR = "\r\x1b[2K"
# Marks log lines that repeat what listeners get; a live view that shows it leaves these lines out.
IN_VIEW = {"in_view": True}


@dataclass(frozen=True)
class TrainingProgress:
    """A training at a moment.

    Attributes:
        phase: as in `infra.gang.conductor.Progress`.
        note: what a person should know beyond the figures, or "".
        samples: consumed since step 0, in all epochs; total: to be consumed in the whole training, None if unknown.
        checkpoint_step: step of the newest checkpoint that this generation has committed; -1: none.
        cost: of the run so far, this training included; None if nothing has been spent.
    """

    phase: str
    step: int = 0
    epoch: int = 0
    samples: int = 0
    total: int | None = None
    samples_per_s: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    note: str = ""
    checkpoint_step: int = -1
    cost: Cost | None = None

    @property
    def share(self) -> float | None:
        """The share of the samples that is done, at most 1; None if the total is unknown."""
        return None if not self.total else min(1.0, self.samples / self.total)

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the last sample at the present speed; None while the total or the speed is unknown."""
        if self.phase != "training" or not self.total or not self.samples_per_s:
            return None
        return max(0, self.total - self.samples) / self.samples_per_s

    @property
    def words(self) -> list[str]:
        """Epoch, step, the first metrics and the speed; if there is a note, the note instead."""
        if self.note or self.phase != "training":
            return [self.note or self.phase]
        if not self.step:
            return ["waiting for the first step"]
        metrics = [f"{name} {self.metrics[name]:.4g}" for name in _losses_first(self.metrics)[:SHOWN_METRICS]]
        speed = [] if not self.samples_per_s else [f"{_figure(self.samples_per_s)} samples/s"]
        return [f"epoch {self.epoch}", f"step {self.step:,}", *metrics, *speed]


class TrainingMeter:
    """Turns a conductor's reports into `TrainingProgress`.

    Args:
        total: samples that the whole training consumes, None if unknown.
        cost: the run's cost, from node-seconds of this training.
    """

    def __init__(
        self, total: int | None, cost: Callable[[float], Cost], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._cost, self._clock = total, cost, clock
        self._generation: int | None = None
        self._node_seconds = 0.0
        self._window: deque[tuple[float, int]] = deque()

    def take(self, progress: Progress) -> TrainingProgress:
        """The training's state after a report."""
        now = self._clock()
        if progress.generation != self._generation:
            self._generation = progress.generation
            self._window.clear()
        if progress.phase == "training" and progress.samples:
            self._window.append((now, progress.samples))
        # Two reports stay, however old: the speed is then known even if a step takes longer than the window.
        while len(self._window) > 2 and self._window[0][0] < now - WINDOW_S:
            self._window.popleft()
        # An ended generation's node-seconds are added to the total a moment after its last report.
        self._node_seconds = max(self._node_seconds, progress.node_seconds)
        return TrainingProgress(
            phase=progress.phase,
            step=progress.step,
            epoch=progress.epoch,
            samples=progress.samples,
            total=self._total,
            samples_per_s=self._speed(),
            metrics=progress.metrics,
            note=progress.sentence,
            checkpoint_step=progress.checkpoint_step,
            cost=self._cost(self._node_seconds),
        )

    def _speed(self) -> float | None:
        if len(self._window) < 2:
            return None
        (began, first), (ended, last) = self._window[0], self._window[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None


def planned_samples(trainer: Mapping[str, Any], rows: int | None, batch_size: int) -> int | None:
    """Samples that a training consumes, by its `trainer` settings; None if they do not say.

    Args:
        rows: of the training split; None where the loader decides how long an epoch is.
        batch_size: global; the last incomplete batch of an epoch is dropped.
    """
    epochs, steps = trainer.get("max_epochs"), trainer.get("max_steps")
    steps = steps if isinstance(steps, int) and steps > 0 else None
    if any(trainer.get(name) is not None for name in _CUTS_SHORT):
        return None
    if not isinstance(epochs, int) or epochs < 0:
        return None if steps is None else steps * batch_size
    if rows is None:
        return None
    by_epochs = epochs * (rows // batch_size) * batch_size
    return by_epochs if steps is None else min(by_epochs, steps * batch_size)


def _losses_first(metrics: Mapping[str, float]) -> list[str]:
    return sorted(metrics, key=lambda name: ("loss" not in name, name))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def on_page(key: str) -> dict[str, str]:
    """Marks a log line about which a page in Prefect has more; its line there gets a link to it."""
    return {"artifact": key}


@dataclass(frozen=True)
class StageBegan:
    """A stage of a run begins.

    Attributes:
        run_id: "" for a stage command called alone, which is not a run.
    """

    stage: str
    pipeline: str
    run_id: str


@dataclass(frozen=True)
class StageEnded:
    """A stage has ended, whatever the outcome."""

    result: StageResult


@dataclass(frozen=True)
class RunEnded:
    """The run has its report, or failed before it had a report."""


@dataclass(frozen=True)
class GangChanged:
    """A generation or its training changed: lists all nodes of the training so far, the newest generation first."""

    statuses: list[RankStatus]


@dataclass(frozen=True)
class GangLaunched:
    """A generation of a training begins; `usage`, called in the conductor's thread, is what its nodes have used."""

    launch: Launch
    usage: Callable[[], GangUsage]


@dataclass(frozen=True)
class NodeHeard:
    """A node of the generation has published a heartbeat, or its end."""

    node: int
    message: Heartbeat | NodeExit


@dataclass(frozen=True)
class GangReleased:
    """The nodes of a generation are released."""

    usage: GangUsage


Record = ShardProgress | TrainingProgress
Event = StageBegan | StageEnded | RunEnded | GangChanged | GangLaunched | NodeHeard | GangReleased | Record
Listener = Callable[[Any], None]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())
_owned: ContextVar[bool] = ContextVar("owned", default=False)


@contextlib.contextmanager
def listening(listener: Listener, *, owns_terminal: bool = False) -> Iterator[None]:
    """Send `listener`, too, the reports of stages that are called in this context.

    Args:
        owns_terminal: whether nothing else may draw on the terminal; `shown` writes no line of its own then.
    """
    tokens = _listeners.set((*_listeners.get(), listener)), _owned.set(_owned.get() or owns_terminal)
    try:
        yield
    finally:
        _listeners.reset(tokens[0])
        _owned.reset(tokens[1])


def notify(event: Event) -> None:
    """Send an event to the listeners."""
    for listener in _listeners.get():
        listener(event)


@contextlib.contextmanager
def shown(stage: str) -> Iterator[Callable[[ShardProgress], None]]:
    """A callback for a child's reports (`training.shard.two_passes`).

    Where stderr is a terminal that nothing else draws on, one line there is updated in place.
    """
    terminal = sys.stderr if sys.stderr.isatty() and not _owned.get() else None

    def show(record: ShardProgress) -> None:
        if terminal is not None:
            terminal.write(f"{_CLEAR}{stage}: {sentence(record)}")
            terminal.flush()
        notify(record)

    try:
        yield show
    finally:
        if terminal is not None:
            terminal.write(_CLEAR)
            terminal.flush()


def sentence(record: Record) -> str:
    """A report in a few words."""
    left = record.seconds_left
    if isinstance(record, TrainingProgress):
        words = record.words
    else:
        rows = f"{record.rows:,} of {record.total:,} rows" if record.total is not None else f"{record.rows:,} rows"
        words = [f"{record.phase} {rows}", f"{record.rows_per_s:,} rows/s"]
    return ", ".join(words if left is None else [*words, f"{in_two_units(left)} left"])


def percent(record: Record) -> float | None:
    """The part of its phase that is done, in percent; None if the total is unknown."""
    return None if record.share is None else round(100 * record.share, 1)
