"""The ledger of runs: what a store records of each run, as far as objectives and the day's page need it; read only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Literal

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError, UserCodeError, from_json
from data_contracts.executions import ExecutionUsage, GangUsage
from data_contracts.run_report import RunReport
from infra.store import Store, layout
from infra.store.seal import pass_over
from infra.store.store import read_several
from tasks.costs.charges import Charge, charges
from tasks.costs.months import usage_of
from tasks.run.report import FINAL, latest_report

# A process at work renews its sign of life several times a minute; clocks of machines may be apart.
SILENT_S = 3600.0
# A run counts at its end, and may have begun so long before.
LONGEST = timedelta(days=14)
Blame = Literal["nobody", "infrastructure", "user", "person", "open"]


@dataclass(frozen=True)
class LedgerRun:
    """One run.

    Attributes:
        verdict: of its newest report; `running` without one, `died` if its process has shown no sign of life for an
            hour, `unknown` if it ended without any record.
        cause: of the error that ended it, as the error tree names it; "" for none.
        stage: the last stage that it reached; "" if none.
        began, ended: seconds since the epoch; `ended` is the last sign of life of a run that has not ended.
        waited_s: how long it waited for a person.
        checkpoints: those in the store of its trainings, by training and generation: step, and if it is quarantined.
    """

    run_id: str
    pipeline: str
    verdict: str
    began: float
    ended: float
    cause: str = ""
    stage: str = ""
    trigger: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    waited_s: float = 0.0
    gangs: Sequence[GangUsage] = ()
    charges: Sequence[Charge] = ()
    checkpoints: Mapping[tuple[str, int], Sequence[tuple[int, bool]]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long it took, without the time that it waited for a person."""
        return max(self.ended - self.began - self.waited_s, 0.0)

    @property
    def blame(self) -> Blame:
        """Who made it fail. A run that a contract or a gate refused did its work, so nobody did."""
        if self.verdict in FINAL:
            return "nobody"
        if self.verdict in ("running", "waiting", "unknown"):
            return "open"
        if self.verdict in ("cancelled", "over_budget"):
            return "person"
        return blame_of(self.cause)


@dataclass(frozen=True)
class RunLedger:
    """The runs of a store since some time, oldest first, and the ids of those whose records are damaged."""

    runs: Sequence[LedgerRun] = ()
    unreadable: Sequence[str] = ()


def blame_of(cause: str) -> Blame:
    """Who is to blame for a failure: the user's code or spec, or everything around it."""
    error = from_json({"cause": cause})
    return "user" if isinstance(error, UserCodeError | UsageError) else "infrastructure"


def read_ledger(store: Store, since: datetime, now: datetime) -> RunLedger:
    """The runs that were at work between two times. StorageUnavailable if the store is away."""
    first = f"{since.astimezone(UTC) - LONGEST:%Y%m%d-%H%M%S}"
    # A run's id begins with the time of its start (UTC); what names no time was not made by Trainwright.
    known = [
        run_id
        for run_id in store.list(layout.runs())
        if is_name(run_id) and re.match(r"[0-9]{8}-", run_id) and run_id >= first
    ]
    read = read_several(store, partial(_tried, store, now=now), known)
    unreadable = [run for run in read if isinstance(run, str)]
    runs = [
        run for run in read if isinstance(run, LedgerRun) and (run.blame == "open" or run.ended >= since.timestamp())
    ]
    return RunLedger(sorted(runs, key=lambda run: run.ended), unreadable)


def _tried(store: Store, run_id: str, *, now: datetime) -> LedgerRun | str | None:
    """A run as `read_run` has it; its id alone if a record is damaged, which is then noted."""
    try:
        return read_run(store, run_id, now)
    except (CorruptError, UsageError) as error:
        pass_over(error)
        return run_id


def read_run(store: Store, run_id: str, now: datetime) -> LedgerRun | None:
    """What a store records of one run; None if there is nothing. CorruptError if a record is damaged."""
    usage, report = usage_of(store, run_id), latest_report(store, run_id)
    done = usage.executions
    if report is None and not done:
        return None
    spent = [charge for one in done for charge in charges(one)]
    run = described(run_id, report, done, so_far=usage.so_far, now_s=now.timestamp())
    return replace(run, charges=spent, checkpoints=_checkpoints(store, run.gangs))


def described(
    run_id: str,
    report: RunReport | None,
    done: Sequence[ExecutionUsage],
    *,
    so_far: bool,
    now_s: float,
) -> LedgerRun:
    """A run from its newest report and its executions in order, of which there is one at least.

    Args:
        so_far: whether its last execution has no end.
    """
    finished = _epoch(report.finished or report.started) if report is not None else None
    began = [one.began for one in done] + ([_epoch(report.started or report.finished)] if report is not None else [])
    signs = [one.began if one.ended is None else one.ended for one in done]
    last = max(signs, default=finished or 0.0)
    verdict, cause = ("unknown", "") if report is None else (report.verdict, (report.error or {}).get("cause", ""))
    # A run that ended and was resumed has a report, and a process whose signs of life are newer.
    if so_far and (finished is None or last > finished):
        verdict, cause = ("running", "") if now_s - last < SILENT_S else ("died", "crashed")
    elif report is None and now_s - last >= SILENT_S:  # its process ended without a report
        verdict, cause = "died", "crashed"
    stages = [stage.name for one in done for stage in one.stages]
    return LedgerRun(
        run_id=run_id,
        pipeline=report.pipeline if report is not None else done[-1].pipeline,
        verdict=verdict,
        cause=str(cause),
        began=min(began),
        ended=last if verdict in ("running", "died") or finished is None else finished,
        stage=report.stages[-1].name if report is not None and report.stages else (stages[-1] if stages else ""),
        trigger=report.trigger if report is not None else "",
        tags=report.tags if report is not None else done[-1].tags,
        waited_s=_waited(done),
        gangs=[gang for one in done for gang in one.gangs],
    )


def _waited(done: Sequence[ExecutionUsage]) -> float:
    """The time between an execution that ended to wait for a person and the next one."""
    waits = (
        after.began - before.ended
        for before, after in itertools.pairwise(done)
        if before.ended is not None and before.stages and before.stages[-1].status == "waiting"
    )
    return sum(max(seconds, 0.0) for seconds in waits)


def _checkpoints(store: Store, gangs: Sequence[GangUsage]) -> dict[tuple[str, int], list[tuple[int, bool]]]:
    """The checkpoints of trainings, by training and generation; one listing for each training."""
    found: dict[tuple[str, int], dict[int, bool]] = {}
    for training in sorted({gang.where for gang in gangs if gang.stage == "train" and gang.ended}):
        for name in store.list(layout.checkpoints(training)):
            parts = layout.split_checkpoint(name)
            if parts is not None:
                steps = found.setdefault((training, parts[1]), {})
                steps[parts[0]] = steps.get(parts[0], False) or parts[2] == "quarantined"
    return {place: sorted(steps.items()) for place, steps in found.items()}


def _epoch(moment: str) -> float:
    """A time of a record (ISO 8601) as seconds since the epoch; 0 if it has none. CorruptError if it is not a time."""
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else 0.0
    except (ValueError, OverflowError) as error:
        raise CorruptError(f"{moment!r} in a run's report is not a time.") from error
