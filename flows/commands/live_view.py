"""The live view: on a terminal, the stages of a run redrawn in place while log lines pass above them.

What it shows is a `RunView`: a run's stages with state, time and words. View and event make a new view.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from data_contracts.messages.raw_data import ShardProgress
from data_contracts.quoting import one_line
from data_contracts.run_report import Cost, StageResult
from flows.commands.terminal import printable
from flows.stages import verbs
from infra.processes.processes import uninterrupted
from infra.quantities import in_two_units
from tasks.run.progress import RunEnded, StageBegan, StageEnded, TrainingProgress, percent, sentence

REFRESH_PER_S = 4
# On a narrower terminal, words stand below the running stage, and ended stages have none.
WIDE = 72
BAR = 30
STDERR = 2
_SHADES = {"ran": "green", "reused": "green", "running": "bold", "skipped": "dim"}
_log = logging.getLogger("trainwright")


class LiveView:
    """Draws on stderr, a terminal, from a run's first stage to its end. Always call `end`."""

    def __init__(self, *, colour: bool) -> None:
        self._console = Console(file=sys.stderr, no_color=not colour or None, highlight=False)
        self._view: RunView | None = None
        self._live: Live | None = None
        self._undo = contextlib.ExitStack()

    def handle(self, event: Any) -> None:
        """Process an event of `tasks.run.progress`."""
        if isinstance(event, RunEnded):
            self.end()
            return
        self._view = updated(self._view, event, time.monotonic())
        if self._view is not None and self._live is None:
            with uninterrupted():
                self._begin()

    def end(self) -> None:
        """Remove the view; silent if the terminal is gone."""
        with uninterrupted():
            if self._live is not None:
                with contextlib.suppress(OSError):
                    self._live.stop()
            self._undo.close()
            self._live = self._view = None

    def _begin(self) -> None:
        # If the answer is printed on the same terminal, it replaces the view, because it says the same.
        self._live = Live(
            console=self._console,
            get_renderable=self._drawn,
            transient=sys.stdout.isatty(),
            refresh_per_second=REFRESH_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        if sys.stdout.isatty():
            self._undo.enter_context(_printed_above(self._console, sys.stdout, contextlib.redirect_stdout))
        self._undo.enter_context(_printed_above(self._console, sys.stderr, contextlib.redirect_stderr))
        self._undo.enter_context(_logged_above(self._console))
        self._undo.enter_context(_cursor_while_suspended())
        with contextlib.suppress(OSError):
            self._live.start(refresh=True)

    def _drawn(self) -> RenderableType:
        return Text() if self._view is None else drawn(self._view, time.monotonic(), self._console.width)


def drawn(view: RunView, now: float, width: int) -> RenderableType:
    """The view for a terminal of `width` columns, in the layout of a run's report."""
    parts: list[RenderableType] = []
    if view.run_id:
        parts += [_line(("running", "bold"), f" {view.pipeline}"), Text()]
    for row in view.rows:
        parts += _stage(row, now, width)
    if view.run_id:
        cost = [_line(f"  cost      {view.cost_words}")] if view.cost_words else []
        parts += [Text(), *cost, _line(f"  run       {view.run_id}")]
    return Group(*parts)


def _stage(row: StageRow, now: float, width: int) -> list[RenderableType]:
    """A line, with a bar while the work is measured; below it, the whole text of a running stage."""
    wide, running = width >= WIDE, row.status == "running"
    name = (f"  {row.name:<9} ", "" if row.status else "dim")
    line = _line(name, (f"{row.status:<9}", _SHADES.get(row.status, "red")), f" {row.time(now):>8}")
    if not running:
        line.append(f"  {row.words}" if wide else "")
        line.rstrip()
        return [line]
    indent = 12 if wide else 4
    words = [Padding(Text(row.words), (0, 0, 0, indent))] if row.words else []
    if row.percent is None:
        return [line, *words]
    bar = _bar(row.percent, width - (len(line) + 2 if wide else indent))
    return [_beside(line, bar), *words] if wide else [line, *words, Padding(bar, (0, 0, 0, indent))]


def _bar(percent: float, room: int) -> RenderableType:
    return _beside(
        ProgressBar(total=100, completed=percent, width=max(1, min(BAR, room - 6))), f"{percent:3.0f} %", gap=1
    )


def _beside(left: RenderableType, right: RenderableType, gap: int = 2) -> RenderableType:
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_row(left, right)
    return grid


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


class _Above:
    """A stream that prints whole lines above the view and passes everything else to the stream that it replaces."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console, self._stream, self._rest = console, stream, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            _print_above(self._console, line)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def close(self) -> None:
        """Print a pending partial line; the stream stays open."""
        if self._rest:
            _print_above(self._console, self._rest)
            self._rest = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _printed_above(console: Console, stream: TextIO, redirect: Any) -> Iterator[None]:
    with contextlib.closing(_Above(console, stream)) as above, redirect(above):
        yield


@contextlib.contextmanager
def _cursor_while_suspended() -> Iterator[None]:
    """Show the cursor while Ctrl-Z suspends this process."""
    before = signal.getsignal(signal.SIGTSTP)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return

    def suspend(_number: int, _frame: Any) -> None:
        # Without any lock: the interrupted code may hold it.
        os.write(STDERR, b"\x1b[?25h")
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)
        os.write(STDERR, b"\x1b[?25l")

    signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)


@contextlib.contextmanager
def _logged_above(console: Console) -> Iterator[None]:
    """Print log lines for the terminal above the view, except those that the view itself shows."""
    swapped = {_Lines(console): one for one in _log.handlers if type(one) is logging.StreamHandler}
    _swap({one: lines for lines, one in swapped.items()})
    try:
        yield
    finally:
        _swap(swapped)


def _swap(swaps: Mapping[Any, logging.Handler]) -> None:
    """Handlers of others, such as Prefect's, stay."""
    _log.handlers[:] = [swaps.get(one, one) for one in _log.handlers]


class _Lines(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "in_view", False):
            # A lost terminal must not end the run.
            with contextlib.suppress(OSError):
                _print_above(self._console, self.format(record))


def _print_above(console: Console, text: str) -> None:
    # The terminal wraps long lines, so that a path can be copied whole.
    console.print(Text(printable(text)), soft_wrap=True)


@dataclass(frozen=True)
class StageRow:
    """One stage.

    Attributes:
        status: `running`, how it ended, or "" before it begins.
        began: on the view's clock; seconds: how long it took, once it has ended.
        words: one line about it.
        percent: how much of the work is done, if known.
    """

    name: str
    status: str = ""
    began: float = 0.0
    seconds: float | None = None
    words: str = ""
    percent: float | None = None

    def time(self, now: float) -> str:
        """How long it has taken: tenths of a second at first, later two units."""
        if not self.status:
            return ""
        seconds = now - self.began if self.seconds is None else self.seconds
        return f"{seconds:.1f} s" if seconds < 100 else in_two_units(seconds)


@dataclass(frozen=True)
class RunView:
    """The stages of a run in order, or the single stage of a stage command."""

    pipeline: str
    run_id: str
    rows: tuple[StageRow, ...]
    cost: Cost | None = None

    @property
    def cost_words(self) -> str:
        """The run's cost so far, "" while nothing was spent."""
        if self.cost is None or not self.cost.node_seconds:
            return ""
        known = self.cost.usd is not None or bool(self.cost.amounts)
        spent = self.cost.money if known else f"{self.cost.node_seconds:,.0f} node-seconds"
        return f"{spent} so far"


def updated(view: RunView | None, event: Any, now: float) -> RunView | None:
    """The view after an event; None while no stage has begun."""
    match event:
        case StageBegan():
            if view is None or (view.pipeline, view.run_id) != (one_line(event.pipeline), event.run_id):
                names = tuple(verbs()) if event.run_id else (event.stage,)
                view = RunView(one_line(event.pipeline), event.run_id, tuple(map(StageRow, names)))
            return _changed(view, event.stage, status="running", began=now)
        case _ if view is None:
            return None
        case StageEnded(StageResult() as result):
            ended = {"status": result.status, "seconds": result.seconds, "words": one_line(result.sentence)}
            return _changed(view, result.name, **ended, percent=None)
        case ShardProgress() | TrainingProgress():
            if isinstance(event, TrainingProgress) and event.cost is not None:
                view = replace(view, cost=event.cost)
            running = next((row.name for row in view.rows if row.status == "running"), "")
            return _changed(view, running, words=one_line(sentence(event)), percent=percent(event))
    return view


def _changed(view: RunView, stage: str, **changes: Any) -> RunView:
    return replace(view, rows=tuple(replace(row, **changes) if row.name == stage else row for row in view.rows))
