"""Where objectives stand: what was good in the last 28 days, what is left of the error budget, and how fast it goes.

What was good of a run, by what an objective measures, is a pure function of the ledger of runs: what a store records of
each run, as far as objectives and the day's page need it. It is only read.

How fast the budget is spent is looked at over two windows at once. The method is that of the SRE workbook (chapter 5,
"Alerting on SLOs"): an alert asks for a high burn rate over a long window, so that it matters, and over a short one, so
that it is still going on. Its windows of 1 h and 5 min, and of 6 h and 30 min, need events by the minute. A line that
runs at night has one event in a day: there the windows are days, an empty short window is as the newest event before
it, and one failure alone wakes nobody.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError, UserCodeError, from_json
from data_contracts.executions import ExecutionUsage
from data_contracts.rules import Objective, Objectives
from data_contracts.run_report import RunReport
from infra.budgets import read_rules
from infra.store import Store, layout
from infra.store.seal import pass_over
from infra.store.store import read_several
from tasks.costs.charges import Charge, charges
from tasks.run.meter import usage_of
from tasks.run.report import FINAL, latest_report

HOUR_S, DAY_S = 3600.0, 86_400.0
WINDOW_S = 28 * DAY_S
Severity = Literal["page", "ticket"]
# One failure in a night is a report to its owner, not an alert about the service.
_LEAST_BAD = 2
WINDOW = timedelta(seconds=WINDOW_S)
DEFAULT = Path(__file__).with_suffix(".yaml")
# Said where these targets are shown.
SHIPPED = "These targets are Trainwright's starting values, not promises of yours: set your own with --objectives."
# A process at work renews its heartbeat several times a minute; clocks of machines may be apart.
SILENT_S = 3600.0
# A run counts at its end, and may have begun so long before.
LONGEST = timedelta(days=14)
Blame = Literal["nobody", "infrastructure", "user", "person", "open"]


@dataclass(frozen=True)
class Point:
    """At a time, so much was good of so much in all: runs or seconds."""

    at: float
    good: float
    total: float

    @property
    def bad(self) -> float:
        """What was not good."""
        return self.total - self.good


@dataclass(frozen=True)
class Pair:
    """A long and a short window, and the share of the budget of 28 days that is spent in the long one at `rate`."""

    severity: Severity
    long_s: float
    short_s: float
    share: float

    @property
    def rate(self) -> float:
        """How many times as fast as the objective permits; 1 spends the whole budget in 28 days."""
        return self.share * WINDOW_S / self.long_s


# As the workbook has them, for at least an event in five minutes.
BUSY = (
    Pair("page", HOUR_S, HOUR_S / 12, 0.02),
    Pair("page", 6 * HOUR_S, HOUR_S / 2, 0.05),
    Pair("ticket", 3 * DAY_S, 6 * HOUR_S, 0.1),
)
# For runs at night: a quarter of the budget in a day, half of it in three days; a ticket for a quarter in a week.
NIGHTLY = (
    Pair("page", DAY_S, 2 * HOUR_S, 0.25),
    Pair("page", 3 * DAY_S, 6 * HOUR_S, 0.5),
    Pair("ticket", 7 * DAY_S, 14 * HOUR_S, 0.25),
)
_BUSY_POINTS = WINDOW_S / BUSY[0].short_s


@dataclass(frozen=True)
class Alert:
    """A pair of windows in both of which the budget is spent too fast; `burn`: how fast in the long one."""

    severity: Severity
    long_s: float
    short_s: float
    rate: float
    burn: float

    @property
    def sentence(self) -> str:
        """What happens, in words."""
        return f"{self.severity}: spent {self.burn:.1f} times too fast over {_hours(self.long_s)}"


def burn(points: Sequence[Point], target: float, since: float, until: float) -> float | None:
    """The burn rate after `since` and up to `until`; None without anything to judge."""
    inside = [point for point in points if since < point.at <= until]
    total = sum(point.total for point in inside)
    return sum(point.bad for point in inside) / total / (1 - target) if total > 0 else None


def alerts(points: Sequence[Point], target: float, now: float) -> list[Alert]:
    """The alerts at a time, the gravest first; one of each severity at most. Points may be in any order."""
    known = sorted((point for point in points if now - WINDOW_S < point.at <= now), key=lambda point: point.at)
    busy = len(known) >= _BUSY_POINTS
    raised: dict[Severity, Alert] = {}
    for pair in BUSY if busy else NIGHTLY:
        long = burn(known, target, now - pair.long_s, now)
        if long is None or long < pair.rate or pair.severity in raised:
            continue
        bad = [point for point in known if point.at > now - pair.long_s and point.bad > 0]
        short = burn(known, target, now - pair.short_s, now)
        if short is None and not busy:
            short = burn(known[-1:], target, now - pair.long_s, now)
        if short is not None and short >= pair.rate and (busy or len(bad) >= _LEAST_BAD):
            raised[pair.severity] = Alert(pair.severity, pair.long_s, pair.short_s, pair.rate, long)
    return list(raised.values())


def _hours(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} days" if seconds > DAY_S else f"{seconds / HOUR_S:.0f} h"


def points_of(objective: Objective, runs: Iterable[LedgerRun], now: float) -> list[Point]:
    """The points of the runs that an objective is for."""
    counted = [run for run in runs if objective.is_for(run.pipeline, run.tags, run.trigger)]
    if objective.measure == "success":
        judged = [run for run in counted if run.blame in ("nobody", "infrastructure")]
        return [Point(run.ended, float(run.blame == "nobody"), 1.0) for run in judged]
    if objective.measure == "time":
        return [point for run in counted for point in _times(run, objective.within_s, now)]
    if objective.measure == "goodput":
        return [point for run in counted for point in _goodput(run)]
    return []  # `checkpoints` and `resumes`, which were dropped


def left_out(objective: Objective, runs: Iterable[LedgerRun]) -> dict[str, int]:
    """How many runs `success` leaves out, by why: they failed by the `user`, or a `person` ended them; `open` ones."""
    out: dict[str, int] = {}
    for run in runs if objective.measure == "success" else ():
        of_it = objective.is_for(run.pipeline, run.tags, run.trigger)
        if of_it and run.blame not in ("nobody", "infrastructure"):
            out[run.blame] = out.get(run.blame, 0) + 1
    return out


def _times(run: LedgerRun, within_s: float, now: float) -> Iterator[Point]:
    """A run that did its work was in time or not; one that still works is late from the moment when it should be done.

    A run that failed is not late: `success` counts it.
    """
    if run.blame == "nobody":
        yield Point(run.ended, float(run.seconds <= within_s), 1.0)
    elif run.verdict == "running":
        due = run.began + run.waited_s + within_s
        if due < now:
            yield Point(due, 0.0, 1.0)


def _goodput(run: LedgerRun) -> Iterator[Point]:
    """The node-seconds of a run, at its end, or at its last heartbeat; those without a known cause are left out."""
    known = [charge for charge in run.charges if charge.cause != "unknown"]
    total = sum(charge.node_seconds for charge in known)
    if total > 0:
        yield Point(run.ended, sum(charge.node_seconds for charge in known if charge.cause == "work"), total)


@dataclass(frozen=True)
class Result:
    """Where one objective stands.

    Attributes:
        good, total: runs or node-seconds in the window.
        burning: how many times too fast the budget was spent over the last 7 days; None without data.
        left_out: runs that count neither way, by why: `user`, `person`, `open`.
    """

    name: str
    objective: Objective
    good: float
    total: float
    burning: float | None = None
    alerts: Sequence[Alert] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The share that was good; None without anything to judge."""
        return self.good / self.total if self.total > 0 else None

    @property
    def state(self) -> str:
        """`met`, `missed` or `no data`."""
        if self.share is None:
            return "no data"
        return "met" if self.share >= self.objective.target else "missed"

    @property
    def budget_left(self) -> float | None:
        """The share of the error budget that is left; negative if it is overspent, None without data."""
        return None if self.share is None else 1 - (1 - self.share) / (1 - self.objective.target)

    @property
    def severity(self) -> str:
        """`page`, `ticket` or ""."""
        return self.alerts[0].severity if self.alerts else ""

    def to_json(self) -> dict[str, object]:
        """The result for a program."""
        named = {"objective": self.name, **self.objective.model_dump(mode="json", exclude_defaults=True)}
        shares = {"good": self.good, "total": self.total, "share": self.share, "state": self.state}
        raised = [
            {"severity": one.severity, "long_s": one.long_s, "short_s": one.short_s, "rate": one.rate, "burn": one.burn}
            for one in self.alerts
        ]
        spent = {"budget_left": self.budget_left, "burn_7d": self.burning, "alerts": raised}
        return {**named, **shares, **spent, "left_out": dict(self.left_out)}


def read_objectives(path: str | Path | None) -> Objectives:
    """The file of objectives, or those that Trainwright ships; UsageError with `file:line: field: what`."""
    return read_rules(DEFAULT if path is None else Path(path), Objectives)


def are_shipped(results: Sequence[Result]) -> bool:
    """Whether these are the results of the objectives that Trainwright ships."""
    return {result.name: result.objective for result in results} == read_objectives(None).objectives


def results(objectives: Objectives, runs: Sequence[LedgerRun], now: datetime) -> list[Result]:
    """Where each objective stands at a time, by the runs of the 28 days before."""
    return [_result(name, one, runs, now.timestamp()) for name, one in objectives.objectives.items()]


def _result(name: str, objective: Objective, runs: Sequence[LedgerRun], now: float) -> Result:
    points = [point for point in points_of(objective, runs, now) if now - WINDOW_S < point.at <= now]
    return Result(
        name,
        objective,
        good=sum(point.good for point in points),
        total=sum(point.total for point in points),
        burning=burn(points, objective.target, now - WINDOW_S / 4, now),
        alerts=alerts(points, objective.target, now),
        left_out=left_out(objective, [run for run in runs if run.blame == "open" or now - run.ended < WINDOW_S]),
    )


@dataclass(frozen=True)
class LedgerRun:
    """One run.

    Attributes:
        verdict: of its newest report; `running` without one, `died` if its process has shown no heartbeat for an
            hour, `unknown` if it ended without any record.
        cause: of the error that ended it, as the error tree names it; "" for none.
        stage: the last stage that it reached; "" if none.
        began, ended: seconds since the epoch; `ended` is the last heartbeat of a run that has not ended.
        waited_s: how long it waited for a person.
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
    charges: Sequence[Charge] = ()

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
    return "user" if isinstance(from_json({"cause": cause}), UserCodeError | UsageError) else "infrastructure"


def read_ledger(store: Store, since: datetime, now: datetime) -> RunLedger:
    """The runs that were at work between two times. StorageUnavailable if the store is away."""
    first = f"{since.astimezone(UTC) - LONGEST:%Y%m%d-%H%M%S}"
    # A run's id begins with the time of its start (UTC); what names no time was not made by Trainwright.
    known = [
        run_id
        for run_id in store.list(layout.runs())
        if is_name(run_id) and re.match(r"[0-9]{8}-", run_id) and run_id >= first
    ]
    read = read_several(store, partial(_read_or_id, store, now=now), known)
    unreadable = [run for run in read if isinstance(run, str)]
    runs = [
        run for run in read if isinstance(run, LedgerRun) and (run.blame == "open" or run.ended >= since.timestamp())
    ]
    return RunLedger(sorted(runs, key=lambda run: run.ended), unreadable)


def _read_or_id(store: Store, run_id: str, *, now: datetime) -> LedgerRun | str | None:
    """A run as `_read_run` has it; its id alone if a record is damaged, which is then noted."""
    try:
        return _read_run(store, run_id, now)
    except (CorruptError, UsageError) as error:
        pass_over(error)
        return run_id


def _read_run(store: Store, run_id: str, now: datetime) -> LedgerRun | None:
    """What a store records of one run; None if there is nothing. CorruptError if a record is damaged."""
    usage, report = usage_of(store, run_id), latest_report(store, run_id)
    done = usage.executions
    if report is None and not done:
        return None
    spent = [charge for one in done for charge in charges(one)]
    run = described(run_id, report, done, so_far=usage.so_far, now_s=now.timestamp())
    return replace(run, charges=spent)


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
    heartbeats = [one.began if one.ended is None else one.ended for one in done]
    last = max(heartbeats, default=finished or 0.0)
    verdict, cause = ("unknown", "") if report is None else (report.verdict, (report.error or {}).get("cause", ""))
    # A run that ended and was resumed has a report, and a process whose heartbeats are newer.
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
    )


def _waited(done: Sequence[ExecutionUsage]) -> float:
    """The time between an execution that ended to wait for a person and the next one."""
    waits = (
        after.began - before.ended
        for before, after in itertools.pairwise(done)
        if before.ended is not None and before.stages and before.stages[-1].status == "waiting"
    )
    return sum(max(seconds, 0.0) for seconds in waits)


def _epoch(moment: str) -> float:
    """A time of a record (ISO 8601) as seconds since the epoch; 0 if it has none. CorruptError if it is not a time."""
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else 0.0
    except (ValueError, OverflowError) as error:
        raise CorruptError(f"{moment!r} in a run's report is not a time.") from error
