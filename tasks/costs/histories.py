"""Reads what runs used: their executions' records, also of processes that were killed or still work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from data_contracts.executions import HERE, ExecutionUsage, GangUsage, NodeUsage
from data_contracts.resolved import Price, Resolved
from data_contracts.run_report import RunReport
from infra.store import Store, layout
from infra.store.records import parsed
from infra.usage import executions_of
from tasks.run.report import latest_report
from tasks.run.run import Run

# The execution of a run that was carried out by a Trainwright that kept no records of what it used.
EARLIER = "report"


@dataclass(frozen=True)
class Usage:
    """What one run used.

    Attributes:
        executions: in order.
        so_far: whether its last execution has no end: it still works, or its process was killed.
    """

    run_id: str
    executions: list[ExecutionUsage]
    so_far: bool = False


def usage_of(store: Store, run_id: str) -> Usage:
    """What a run has used so far. CorruptError if a record is damaged."""
    found, so_far = executions_of(store, run_id)
    return Usage(run_id, found or _of_report(store, run_id), so_far)


def usage_of_run(run: Run) -> Usage:
    """What a run has used so far, up to now if this process carries it out."""
    usage = usage_of(run.store, run.run_id) if run.recorded else Usage(run.run_id, [])
    mine = {meter.so_far.execution: meter.so_far for meter in run.meters}
    others = [one for one in usage.executions if one.execution not in mine and one.execution != EARLIER]
    earlier = [] if mine else [one for one in usage.executions if one.execution == EARLIER]
    return Usage(run.run_id, [*earlier, *others, *mine.values()], usage.so_far)


def _seconds(moment: str) -> float:
    """A time of a record (ISO 8601) as seconds since the epoch; 0 if it has none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _of_report(store: Store, run_id: str) -> list[ExecutionUsage]:
    """The cost in the report of a run of an earlier Trainwright. CorruptError if its figures cannot be."""
    resolved = store.find_as(layout.resolved(run_id), Resolved.from_json)
    report = latest_report(store, run_id)
    if resolved is None or report is None:
        return []
    price = resolved.price
    return [parsed(layout.report(run_id), lambda known: _as_execution(run_id, known, price), report)]


def _as_execution(run_id: str, report: RunReport, price: Price) -> ExecutionUsage:
    """An execution that used what a report says, which counted the nodes that trained."""
    ended = _seconds(report.finished or report.started)
    node = NodeUsage(number=0, started=ended - report.cost.node_seconds, released=ended)
    gang = GangUsage(stage="train", where=f"runs/{run_id}", generation=0, local=False, nodes=[node], ended="")
    return ExecutionUsage(
        run_id=run_id,
        execution=EARLIER,
        pipeline=report.pipeline,
        model=report.model.name if report.model is not None else report.pipeline,
        tags=report.tags,
        prices={"train": price, HERE: price},
        began=ended,
        ended=ended,
        gangs=[gang] if report.cost.node_seconds else [],
    )
