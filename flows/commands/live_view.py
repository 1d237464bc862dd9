"""The live view: on a terminal, the stages of a run redrawn in place while log lines pass above them."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from data_contracts.messages.raw_data import ShardProgress
from data_contracts.quoting import one_line
from flows.stages import verbs
from infra.processes.processes import uninterrupted
from infra.quantities import in_two_units
from tasks.run.progress import RunEnded, StageBegan, StageEnded, TrainingProgress, percent, sentence

_STYLES = {"ran": "green", "reused": "green", "running": "bold", "skipped": "dim"}
_log = logging.getLogger("trainwright")


@dataclass
class StageRow:
    """One stage.

    Attributes:
        status: `running`, how it ended, or "" before it begins.
        began: on the clock of the view; seconds: how long it took, once it has ended.
        words: what it does or has done.
    """

    status: str = ""
    began: float = 0.0
    seconds: float | None = None
    words: str = ""

    def time(self, now: float) -> str:
        """How long it has taken: tenths of a second at first, later two units."""
        seconds = now - self.began if self.seconds is None else self.seconds
        return f"{seconds:.1f} s" if seconds < 100 else in_two_units(seconds)


class LiveView:
    """Draws on stderr, a terminal, from a run's first stage to its end. Always call `end`."""

    def __init__(self, *, colour: bool) -> None:
        self._console = Console(stderr=True, no_color=not colour or None, highlight=False)
        self._live: Live | None = None
        self._undo = contextlib.ExitStack()
        self._run = ("", "")
        self._rows: dict[str, StageRow] = {}

    def handle(self, event: Any) -> None:
        """Process an event of `tasks.run.progress`."""
        match event:
            case RunEnded():
                self.end()
            case StageBegan():
                if self._run != (run := (one_line(event.pipeline), event.run_id)) or event.stage not in self._rows:
                    self._run = run
                    self._rows = {name: StageRow() for name in (verbs() if event.run_id else [event.stage])}
                self._rows[event.stage] = StageRow("running", time.monotonic())
                if self._live is None:
                    with uninterrupted():
                        self._begin()
            case StageEnded(result) if result.name in self._rows:
                words = one_line(result.sentence)
                self._rows[result.name] = StageRow(result.status, seconds=result.seconds, words=words)
            case ShardProgress() | TrainingProgress():
                done = percent(event)
                words = sentence(event) if done is None else f"{done:.0f} %, {sentence(event)}"
                for row in self._rows.values():
                    if row.status == "running":
                        row.words = one_line(words)

    def end(self) -> None:
        """Remove the view; silent if the terminal is gone."""
        with uninterrupted():
            if self._live is not None:
                with contextlib.suppress(OSError):
                    self._live.stop()
            self._undo.close()
            self._live, self._rows = None, {}

    def drawn(self) -> RenderableType:
        """The stages as a table, in the layout of a run's report."""
        table = Table.grid(padding=(0, 1))
        for name, row in self._rows.items():
            style = _STYLES.get(row.status, "red")
            took = row.time(time.monotonic()) if row.status else ""
            table.add_row(Text(f"  {name:<9}"), Text(f"{row.status:<9}", style), Text(f"{took:>8} "), Text(row.words))
        pipeline, run_id = self._run
        if not run_id:
            return table
        return Group(Text.assemble(("running", "bold"), f" {pipeline}\n"), table, Text(f"\n  run       {run_id}"))

    def _begin(self) -> None:
        # If the answer is printed on the same terminal, it replaces the view, because it says the same.
        same = sys.stdout.isatty()
        self._live = Live(console=self._console, get_renderable=self.drawn, transient=same, redirect_stdout=same)
        with contextlib.suppress(OSError):
            self._live.start(refresh=True)
        for handler in _log.handlers:
            if type(handler) is logging.StreamHandler:  # those of others, such as Prefect's, stay
                before = handler.setStream(sys.stderr)  # which prints above the view now
                handler.addFilter(_is_not_in_view)
                self._undo.callback(handler.removeFilter, _is_not_in_view)
                self._undo.callback(handler.setStream, before)


def _is_not_in_view(record: logging.LogRecord) -> bool:
    return not getattr(record, "in_view", False)
