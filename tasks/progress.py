"""Shows how far a stage is: a line in the terminal that replaces itself, and whoever else listens."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

Listener = Callable[[dict[str, Any]], None]

_CLEAR = "\r\x1b[2K"
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener`, too, of what stages called here report."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(record: dict[str, Any]) -> None:
    """Tell the listener something that the terminal does not show."""
    if (listener := _listener.get()) is not None:
        listener(record)


@contextlib.contextmanager
def shown(stage: str) -> Iterator[Listener]:
    """A callback for a child's reports (see `training.progress`); nothing is written where stderr is no terminal."""
    listener, terminal = _listener.get(), sys.stderr if sys.stderr.isatty() else None

    def show(record: dict[str, Any]) -> None:
        if terminal is not None:
            terminal.write(f"{_CLEAR}{stage}: {sentence(record)}")
            terminal.flush()
        if listener is not None:
            listener(record)

    try:
        yield show
    finally:
        if terminal is not None:
            terminal.write(_CLEAR)
            terminal.flush()


def sentence(record: dict[str, Any]) -> str:
    """A report in a few words."""
    total, left = record["total"], record["seconds_left"]
    rows = f"{record['rows']:,} of {total:,} rows" if total is not None else f"{record['rows']:,} rows"
    words = [f"{record['phase']} {rows}", f"{record['rows_per_s']:,} rows/s"]
    return ", ".join(words if left is None else [*words, f"{_duration(left)} left"])


def percent(record: dict[str, Any]) -> float:
    """How much of its phase a report says is done."""
    return round(100 * record["share"], 1)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
