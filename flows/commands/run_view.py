"""The content of the live view: a run's stages with state, time and words. Pure: view and event make a new view."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from data_contracts.messages.raw_data import ShardProgress
from data_contracts.quoting import one_line
from data_contracts.run_report import Cost, StageResult
from flows.stages import verbs
from infra.quantities import in_two_units
from tasks.run.progress import StageBegan, StageEnded, TrainingProgress, percent, sentence


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
