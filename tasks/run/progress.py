"""Reports a stage's progress to listeners, in the same words in the terminal and in Prefect."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from data_contracts.executions import GangUsage
from data_contracts.messages.gang import Heartbeat, Launch, NodeExit
from data_contracts.messages.raw_data import ShardProgress
from data_contracts.run_report import StageResult
from infra.gang.ledger import Seat
from infra.quantities import in_two_units
from tasks.run.training_progress import TrainingProgress

_CLEAR = "\r\x1b[2K"
# Marks log lines that repeat what listeners get; a live view that shows it leaves these lines out.
IN_VIEW = {"in_view": True}


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

    seats: list[Seat]


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
