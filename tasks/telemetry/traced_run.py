"""A run as a trace: the run, its stages, and below `train` the nodes, their ranks and the checkpoints that they saved.

Names and attributes follow OpenTelemetry's conventions for CI/CD where these fit; the others begin with `trainwright`.
No sentence is in a span: a sentence may quote a value.
"""

from __future__ import annotations

import os
from typing import Any

from data_contracts.errors import causes
from data_contracts.executions import GangUsage
from data_contracts.messages.gang import Heartbeat, NodeExit, reports_of
from data_contracts.run_report import RunReport, StageResult
from infra.processes.this_process import now_s
from infra.telemetry import TRACEPARENT, Context, current
from infra.traces import Spans
from tasks.run.progress import GangLaunched, GangReleased, NodeHeard, StageBegan, StageEnded
from tasks.run.run import Run

# The conventions' word for how a run, or a stage, ended.
_RESULTS = {
    **dict.fromkeys(("promoted", "canary", "unchanged", "ran", "reused", "waiting"), "success"),
    **dict.fromkeys(("not_promoted", "rejected"), "failure"),
    **dict.fromkeys(("cancelled", "over_budget"), "cancellation"),
    "skipped": "skip",
}
_CAUSES = causes()


class TracedRun:
    """Takes a run's events in the thread that carries it out, and sends a span for each thing that ends.

    The children of this process get the context of the stage that they work for by the variable TRACEPARENT.
    """

    def __init__(self, run: Run, spans: Spans) -> None:
        self._run, self._spans, self._began = run, spans, now_s()
        self._above = current()
        self._name = f"RUN {run.spec.name}"
        self._root = spans.root(self._name, self._above)
        self._before = os.environ.get(TRACEPARENT)
        self._stage: tuple[Context, float] | None = None
        self._gang: tuple[Context, int] | None = None
        self._messages: dict[int, Heartbeat | NodeExit] = {}
        self._heard: dict[int, float] = {}
        self._sent: set[tuple[int, float]] = set()
        self._hand_on(self._root)

    def __call__(self, event: Any) -> None:
        """Take an event in."""
        match event:
            case StageBegan():
                self._stage = self._root.child(event.stage, now_s()), now_s()
                self._hand_on(self._stage[0])
            case StageEnded():
                self._end_stage(event.result)
            case GangLaunched():
                above = self._root if self._stage is None else self._stage[0]
                self._gang = above, event.launch.generation
                self._messages, self._heard, self._sent = {}, {}, set()
            case NodeHeard():
                self._messages[event.node] = event.message
                self._heard.setdefault(event.node, now_s())
                self._checkpoints(event.node, event.message)
            case GangReleased():
                self._end_gang(event.usage)

    def end(self, report: RunReport | None) -> None:
        """Send the run's span, and take TRACEPARENT back; `report`: None if the run ended without one."""
        verdict = "failed" if report is None else report.verdict
        error = "" if verdict != "failed" else "internal" if report is None else _cause(report.error)
        attributes = {
            "cicd.pipeline.name": self._run.spec.name,
            "cicd.pipeline.run.id": self._run.run_id,
            "cicd.pipeline.action.name": "RUN",
            "cicd.pipeline.result": _RESULTS.get(verdict, "error"),
            "trainwright.verdict": verdict,
        }
        self._spans.ended(
            self._name, self._root, self._above, (self._began, now_s()), attributes, error=error, server=True
        )
        if self._before is None:
            os.environ.pop(TRACEPARENT, None)
        else:
            os.environ[TRACEPARENT] = self._before

    def _hand_on(self, context: Context) -> None:
        os.environ[TRACEPARENT] = str(context)

    def _end_stage(self, result: StageResult) -> None:
        self._hand_on(self._root)
        if self._stage is None:
            return
        (context, began), self._stage = self._stage, None
        attributes = {
            "cicd.pipeline.task.name": result.name,
            "cicd.pipeline.task.run.id": f"{self._run.run_id}/{result.name}",
            "cicd.pipeline.task.run.result": _RESULTS.get(result.status, "error"),
            "trainwright.stage.status": result.status,
        }
        error = "failed" if result.status == "failed" else ""
        self._spans.ended(result.name, context, self._root, (began, now_s()), attributes, error=error)

    def _node(self, number: int) -> tuple[Context, Context]:
        """The context of the stage that launched a node, and of the node."""
        assert self._gang is not None, "a node is of a generation"
        above, generation = self._gang
        return above, above.child("node", generation, number)

    def _end_gang(self, usage: GangUsage) -> None:
        """Send the spans of a generation's nodes and ranks."""
        if self._gang is None:
            return
        error = "" if usage.ended == "done" else usage.ended if usage.ended in _CAUSES else "other"
        for node in usage.nodes:
            above, context = self._node(node.number)
            about = {"trainwright.generation": usage.generation, "trainwright.node": node.number}
            times = (node.started, node.released)
            self._spans.ended(f"node {node.number}", context, above, times, about, error=error)
            message = self._messages.get(node.number)
            for report in () if message is None else reports_of(message):
                rank, began = context.child("rank", report.rank), self._heard[node.number]
                about_rank = {**about, "trainwright.rank": report.rank, "trainwright.step": report.step}
                self._spans.ended(f"rank {report.rank}", rank, context, (began, node.released), about_rank, error=error)
        self._gang = None

    def _checkpoints(self, node: int, message: Heartbeat | NodeExit) -> None:
        """Send the spans of checkpoints that a node's ranks have saved since."""
        if self._gang is None:
            return
        for report in reports_of(message):
            for saved in () if report.measured is None else report.measured.newest_saves:
                if (report.rank, saved.began) in self._sent:
                    continue
                self._sent.add((report.rank, saved.began))
                rank = self._node(node)[1].child("rank", report.rank)
                about = {"trainwright.rank": report.rank, "trainwright.step": saved.step}
                times, error = (saved.began, saved.ended), "" if saved.sealed else "storage"
                self._spans.ended("checkpoint", rank.child(saved.began), rank, times, about, error=error)


def _cause(error: dict[str, Any] | None) -> str:
    cause = str((error or {}).get("cause", "internal"))
    return cause if cause in _CAUSES else "internal"
