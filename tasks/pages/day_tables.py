"""The tables of a day's page: objectives, champions, drift, budgets and nodes."""

from __future__ import annotations

from datetime import datetime

from data_contracts.rules import shown
from tasks.charts.bars import Bar, bars
from tasks.charts.picture import BAD, GOOD, WARN
from tasks.pages.html import NOTHING, Markup, chart, section, table, tag
from tasks.queries.day import StoreDay
from tasks.slo.results import SHIPPED, Result, are_shipped

_STATES = {"met": "good", "missed": "bad", "no data": "calm"}
_DRIFT = {"critical": "bad", "warning": "warn"}
_MOST = 50


def objective_section(store: StoreDay) -> Markup:
    """Each objective with what is left of its error budget."""
    if not any(result.total for result in store.results):
        return NOTHING
    rows = [
        (
            result.name,
            tag("span", result.state, kind=f"tag {_STATES[result.state]}"),
            f"{result.objective.target:.1%}",
            share_words(result),
            good_words(result),
            budget_words(result),
            ", ".join(alert.sentence for alert in result.alerts),
        )
        for result in store.results
    ]
    return section(
        "Objectives",
        table(("objective", "state", "target", "28 days", "good", "budget left", "alert"), rows, numbers=[2, 3, 4, 5]),
        tag("p", "Over 28 days. A run that the contract or a gate refused is good: it did its work.", kind="soft"),
        tag("p", SHIPPED, kind="soft") if are_shipped(store.results) else NOTHING,
    )


def share_words(result: Result) -> str:
    """The share that was good."""
    return "–" if result.share is None else f"{result.share:.1%}"


def good_words(result: Result) -> str:
    """How much was good, of how much."""
    if result.share is None:
        return "–"
    if result.objective.measure == "goodput":
        return f"{_hours(result.good)} of {_hours(result.total)} h"
    return f"{result.good:,.0f} of {result.total:,.0f}"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}"


def budget_words(result: Result) -> str:
    """What is left of the error budget."""
    left = result.budget_left
    if left is None:
        return "–"
    return f"{left:.0%}" if left >= 0 else f"overspent: {1 - left:.1f} budgets used"


def champion_section(store: StoreDay, now: datetime) -> Markup:
    """Every alias of every model, with its age."""
    rows = [
        (f"{one.model}@{one.alias}", str(one.version), age(one.since, now), one.beside)
        for one in store.champions[:_MOST]
    ]
    more = len(store.champions) - len(rows)
    return section(
        "Champions",
        table(("alias", "version", "age", "canary"), rows, numbers=[1]),
        tag("p", f"{more:,} more aliases; `trainwright status` lists them.", kind="soft") if more > 0 else NOTHING,
    )


def age(since: str, now: datetime) -> str:
    """How long ago, in the largest unit; "unknown" if the time is none, or lies in the future."""
    try:
        seconds = (now - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError):
        return "unknown"
    if seconds < 0:
        return "unknown"
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "less than a minute"


def drift_section(store: StoreDay) -> Markup:
    """The newest comparison of each pipeline's data."""
    rows = [
        (
            one.pipeline,
            tag("span", one.verdict, kind=f"tag {_DRIFT.get(one.verdict, 'good')}"),
            one.head,
            tag("code", one.run_id),
        )
        for one in store.drift
    ]
    return section("Drift", table(("pipeline", "verdict", "what moved", "run"), rows))


def budget_section(store: StoreDay) -> Markup:
    """The budgets of this month, and those of runs that were started in it."""
    known = [one for one in store.budgets if one.period != "each run"][:_MOST]
    drawn = [
        Bar(
            f"{one.name} ({one.period})",
            min((one.spent + one.reserved) / one.budget.limit.value, 1.0),
            f"{shown(one.left)} {one.budget.limit.unit} left",
            BAD if one.left <= 0 else WARN if one.left < one.budget.limit.value / 5 else GOOD,
        )
        for one in known
    ]
    picture = bars(drawn, "Budgets: the share that is spent or reserved", high=1.0)
    rows = [
        (one.name, one.period, shown(one.spent), shown(one.reserved), shown(one.left), one.budget.limit.unit)
        for one in known
    ]
    head = ("budget", "period", "spent", "reserved", "left", "unit")
    return section(
        "Budgets",
        chart(picture, "The share that is spent or reserved.") if picture else NOTHING,
        table(head, rows, numbers=[2, 3, 4]),
    )


def node_section(store: StoreDay) -> Markup:
    """The nodes that are drained, or on which something went wrong."""
    rows = []
    for node in store.nodes[:_MOST]:
        drained = node.is_drained
        why = node.standing.sentence if drained and node.standing else ""
        state = tag("span", "drained" if drained else "in use", kind=f"tag {'warn' if drained else 'calm'}")
        figures = [str(node.count(kind)) for kind in ("failure", "straggler", "corrupt_replica")]
        rows.append((node.name, state, *figures, why))
    head = ("node", "state", "failures", "stragglers", "corrupt replicas", "why")
    return section("Nodes", table(head, rows, numbers=[2, 3, 4]))
