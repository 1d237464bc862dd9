"""How fast an error budget is spent: a pure function of points in time, over two windows at once.

The method is that of the SRE workbook (chapter 5, "Alerting on SLOs"): an alert asks for a high burn rate over a long
window, so that it matters, and over a short one, so that it is still going on. Its windows of 1 h and 5 min, and of 6 h
and 30 min, need events by the minute. A line that runs at night has one event in a day: there the windows are
days, an empty short window is as the newest event before it, and one failure alone wakes nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

HOUR_S, DAY_S = 3600.0, 86_400.0
WINDOW_S = 28 * DAY_S
Severity = Literal["page", "ticket"]


@dataclass(frozen=True)
class Point:
    """At a time, so much was good of so much in all: runs, checkpoints or seconds."""

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
# One failure in a night is a report to its owner, not an alert about the service.
_LEAST_BAD = 2


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
