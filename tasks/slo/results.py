"""Where objectives stand: what was good in the last 28 days, what is left of the error budget, and how fast it goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from data_contracts.rules import Objective, Objectives
from infra.budgets import read_rules
from tasks.slo.burn import WINDOW_S, Alert, Point, alerts, burn
from tasks.slo.indicators import left_out, points_of
from tasks.slo.ledger import LedgerRun

WINDOW = timedelta(seconds=WINDOW_S)
DEFAULT = Path(__file__).with_name("default.yaml")


# Said where these targets are shown.
SHIPPED = "These targets are Trainwright's starting values, not promises of yours: set your own with --objectives."


@dataclass(frozen=True)
class Result:
    """Where one objective stands.

    Attributes:
        good, total: runs, checkpoints, resumes or node-seconds in the window.
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

    def to_json(self) -> dict[str, Any]:
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


def are_shipped(found: Sequence[Result]) -> bool:
    """Whether these are the results of the objectives that Trainwright ships."""
    return {result.name: result.objective for result in found} == read_objectives(None).objectives


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
        burning=_of_a_week(points, objective.target, now),
        alerts=alerts(points, objective.target, now),
        left_out=left_out(objective, [run for run in runs if run.blame == "open" or now - run.ended < WINDOW_S]),
    )


def _of_a_week(points: Sequence[Point], target: float, now: float) -> float | None:
    return burn(points, target, now - WINDOW_S / 4, now)
