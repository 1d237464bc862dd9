"""The page of a day: what needs a person, runs, goodput, objectives, champions, drift, budgets and nodes.

What needs a person is one sentence and one command each, the gravest first. The page loads nothing. It shows no text of
an error and no name of a column: those are on the page of the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import humanize

from data_contracts.rules import shown
from infra.quantities import in_two_units
from infra.records.nodes import NodeRecord
from tasks.charts.picture import BAD, BLUE, GOOD, SERIES, SOFT, WARN
from tasks.charts.plots import DayColumn, day_columns
from tasks.pages.html import HEAD, badge, code, page
from tasks.queries.day import STRIP_DAYS, Day, StoreDay
from tasks.slo import SHIPPED, LedgerRun, Result, are_shipped

MOST_RUNS = 50
_TITLE = "Day to "
_COLOURS = {
    "promoted": GOOD,
    "unchanged": BLUE,
    "refused": WARN,
    "failed": BAD,
    "failed in the user's code": SERIES[1],
    "stopped": SOFT,
    "not ended": SERIES[5],
}
# A share that is shown as 0.0% is not named.
_LEAST_NAMED = 0.0005
_GOODPUT = {"work": GOOD, "waste": BAD}
_TONES = {"promoted": "good", "unchanged": "calm", "refused": "warn", "failed": "bad", "not ended": "calm"}
# Of what needs a person, so many of each kind: a night in which everything fails fills no page.
MOST = 8
_ORDER = ("bad", "warn")
_STATES = {"met": "good", "missed": "bad", "no data": "calm"}
_DRIFT = {"critical": "bad", "warning": "warn"}
_MOST_ROWS = 50


def day_page(day: Day) -> str:
    """The page of one or several stores."""
    asked = needs(day)
    tone = asked[0].tone if asked else ("good" if any(store.runs for store in day.stores) else "calm")
    return page(
        "day",
        title=f"{_TITLE}{_minute(day.now)}",
        tone=tone,
        since=_minute(day.since),
        now=_minute(day.now),
        heading=_title(day, asked),
        counts=_counts(day),
        attention=asked,
        days=STRIP_DAYS,
        stores=[_of_store(day, store) for store in day.stores],
    )


def day_rows(day: Day) -> tuple[str, str, list[tuple[str, str, str]]]:
    """The page in a few lines: its title, the runs by verdict, and kind, sentence and command of what is needed."""
    asked = needs(day)
    return _title(day, asked), f"{_counts(day)}.", [(words(one.kind), one.sentence, one.command) for one in asked]


def is_day_page(beginning: str) -> bool:
    """Whether a file that begins so is a page of a day."""
    return beginning.startswith(HEAD) and f"<title>{_TITLE}" in beginning


def _counts(day: Day) -> str:
    runs = [run for store in day.stores for run in day.recent(store)]
    return ", ".join(f"{number} {name}" for name, number in _counted(runs).items()) or "No runs"


def _title(day: Day, attention: Sequence[AttentionItem]) -> str:
    if attention:
        return f"{len(attention)} thing{' needs' if len(attention) == 1 else 's need'} a person"
    return "Nothing needs a person" if any(store.runs for store in day.stores) else "No runs yet"


def _of_store(day: Day, store: StoreDay) -> Mapping[str, object]:
    """What the page shows of a store."""
    recent = day.recent(store)
    more_runs, more_champions = len(recent) - MOST_RUNS, len(store.champions) - _MOST_ROWS
    goodput, goodput_words = _goodput(day, store)
    budgets = [balance for balance in store.budgets if balance.period != "each run"][:_MOST_ROWS]
    return {
        "uri": store.uri,
        "size": f"Runs: {len(store.runs):,} in 28 days." if store.runs else "No runs in 28 days.",
        "strip": day_columns(_strip(day, store), _COLOURS, f"Runs of the last {STRIP_DAYS} days by verdict", "runs"),
        "runs": [_row(run, day.now) for run in recent[:MOST_RUNS]],
        "more_runs": f"{more_runs:,} more; `trainwright status` lists the newest." if more_runs > 0 else "",
        "goodput": goodput,
        "goodput_words": goodput_words,
        "objectives": _objective_rows(store),
        "shipped": SHIPPED if are_shipped(store.results) else "",
        "champions": [
            (f"{champion.model}@{champion.alias}", champion.version, age(champion.since, day.now))
            for champion in store.champions[:_MOST_ROWS]
        ],
        "more_champions": (
            f"{more_champions:,} more aliases; `trainwright status` lists them." if more_champions > 0 else ""
        ),
        "drift": [
            (drift.pipeline, badge(drift.verdict, _DRIFT.get(drift.verdict, "good")), drift.head, code(drift.run_id))
            for drift in store.drift
        ],
        "budgets": [
            (
                *(balance.name, balance.period),
                *(shown(amount) for amount in (balance.spent, balance.reserved, balance.left)),
                balance.budget.limit.unit,
            )
            for balance in budgets
        ],
        "nodes": [_node_row(node) for node in store.nodes[:_MOST_ROWS]],
    }


def _row(run: LedgerRun, now: datetime) -> tuple[str, ...]:
    group = group_of(run)
    said = words(run.verdict) if run.verdict != "failed" else f"failed: {words(run.cause)}"
    ended = "" if run.blame == "open" else _minute(datetime.fromtimestamp(run.ended, UTC))
    took = now.timestamp() - run.began - run.waited_s if run.verdict == "running" else run.seconds
    return (
        *(run.pipeline, badge(said, _TONES.get(group, "warn")), ended),
        *(in_two_units(took), run.stage, code(run.run_id)),
    )


def _strip(day: Day, store: StoreDay) -> list[DayColumn]:
    return [
        DayColumn(name, _counted(runs), str(len(runs)) if runs else "")
        for name, runs in _by_day(day, store.runs).items()
    ]


def _goodput(day: Day, store: StoreDay) -> tuple[str, str]:
    """Node-hours by day, work and waste, as a picture; the causes of the waste in words."""
    spent: dict[str, dict[str, float]] = {name: {} for name in _days(day)}
    causes: dict[str, float] = {}
    for run in store.runs:
        for charge in run.charges:
            name = _day_name(charge.ended_us / 1e6)
            if name in spent and charge.cause != "unknown":
                hours, is_work = charge.node_seconds / 3600, charge.cause == "work"
                kind = "work" if is_work else "waste"
                spent[name][kind] = spent[name].get(kind, 0.0) + hours
                causes[charge.cause] = causes.get(charge.cause, 0.0) + hours
    columns = [DayColumn(name, parts, _share(parts)) for name, parts in spent.items()]
    picture = day_columns(columns, _GOODPUT, "Node-hours by day: work and waste", "node-hours")
    whole = sum(causes.values())
    wasted = sorted(((hours, cause) for cause, hours in causes.items() if cause != "work"), reverse=True)
    named = ", ".join(f"{cause} {hours / whole:.1%}" for hours, cause in wasted[:5] if hours >= _LEAST_NAMED * whole)
    return picture, (
        f"Goodput {causes.get('work', 0.0) / whole:.1%}. Not work: {named or 'nothing'}." if whole > 0 else ""
    )


def _share(parts: Mapping[str, float]) -> str:
    whole = sum(parts.values())
    return f"{parts.get('work', 0.0) / whole:.0%}" if whole > 0 else ""


def group_of(run: LedgerRun) -> str:
    """The word by which a run is counted."""
    if run.verdict in ("promoted", "canary", "unchanged", "trained"):
        return "promoted" if run.verdict == "promoted" else "unchanged"
    if run.blame in ("nobody", "person"):
        return "refused" if run.blame == "nobody" else "stopped"
    if run.blame == "open":
        return "not ended"
    return "failed" if run.blame == "infrastructure" else "failed in the user's code"


def _counted(runs: Sequence[LedgerRun]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for group in map(group_of, runs):
        counted[group] = counted.get(group, 0) + 1
    return {name: counted[name] for name in _COLOURS if name in counted}


def _days(day: Day) -> list[str]:
    return [_day_name((day.now - timedelta(days=back)).timestamp()) for back in range(STRIP_DAYS - 1, -1, -1)]


def _by_day(day: Day, runs: Sequence[LedgerRun]) -> dict[str, list[LedgerRun]]:
    found: dict[str, list[LedgerRun]] = {name: [] for name in _days(day)}
    for run in runs:
        found.get(_day_name(run.ended), []).append(run)
    return found


def _day_name(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


@dataclass(frozen=True)
class AttentionItem:
    """Something that needs a person; `tone`: `bad` or `warn`."""

    tone: str
    kind: str
    sentence: str
    command: str


def needs(day: Day) -> list[AttentionItem]:
    """What needs a person, the gravest first; of each kind at most `MOST`, and then how many more there are."""
    found: dict[tuple[str, str], list[AttentionItem]] = {}
    for store in day.stores:
        for one in _needs_of_store(day, store):
            found.setdefault((one.tone, one.kind), []).append(one)
    listed: list[AttentionItem] = []
    for (tone, kind), alike in found.items():
        listed += alike[:MOST]
        if len(alike) > MOST:
            listed.append(AttentionItem(tone, kind, f"{len(alike) - MOST} more of this kind", "trainwright status"))
    return sorted(listed, key=lambda one: _ORDER.index(one.tone))


def _needs_of_store(day: Day, store: StoreDay) -> Iterator[AttentionItem]:
    for result in store.results:
        for alert in result.alerts[:1]:
            tone = "bad" if alert.severity == "page" else "warn"
            yield AttentionItem(
                tone, "objective", f"{result.name}: {alert.sentence}", f"trainwright slo {shlex.quote(store.uri)}"
            )
    for run, what in store.waits:
        yield AttentionItem(
            "warn",
            "approval",
            f"{run.pipeline} waits {what}".rstrip(),
            f"trainwright approve {run.run_id} --reason WHY",
        )
    for run in store.runs:
        if run.verdict == "died":
            sentence = f"the process of a run of {run.pipeline} died in {run.stage or 'its beginning'}"
            yield AttentionItem("bad", "died", sentence, f"trainwright resume {run.run_id}")
    for run in _failing(day.recent(store)):
        sentence = f"the newest run of {run.pipeline} failed in {run.stage or 'its beginning'}: {cause_words(run)}"
        yield AttentionItem("bad", "failed", sentence, f"trainwright report {run.run_id}")
    yield from _of_the_store(day, store)


def _of_the_store(day: Day, store: StoreDay) -> Iterator[AttentionItem]:
    if store.is_nearly_full:
        sentence = f"the disk of {store.uri} is {store.used:.0%} full"
        yield AttentionItem("bad", "disk", sentence, f"trainwright gc --dry-run {shlex.quote(store.uri)}")
    for budget in store.budgets:
        if budget.period != "each run" and budget.left <= 0:
            yield AttentionItem(
                "bad",
                "budget",
                f"nothing is left of {budget.sentence}",
                f"trainwright budget --store {shlex.quote(store.uri)}",
            )
    for node in store.nodes:
        went_wrong = [one for one in node.failures if _moment(one.at) >= day.since.timestamp()]
        if went_wrong and not node.is_drained:
            failures = "1 mishap" if len(went_wrong) == 1 else f"{len(went_wrong)} mishaps"
            sentence = f"node {node.name}: {failures}, the last one a {words(went_wrong[-1].kind)}"
            yield AttentionItem("warn", "node", sentence, f"trainwright nodes {shlex.quote(store.uri)}")
    if store.unreadable:
        number = len(store.unreadable)
        sentence = f"{number} run{'' if number == 1 else 's'} with damaged records, such as {store.unreadable[0]}"
        yield AttentionItem("bad", "damaged", sentence, f"trainwright show {store.unreadable[0]}")
    for what in store.missing:
        yield AttentionItem(
            "warn", "missing", f"not on this page, because it could not be read: {what}", "trainwright doctor"
        )


def _failing(recent: Iterable[LedgerRun]) -> Iterator[LedgerRun]:
    """Of each pipeline its newest run that ended, if it failed."""
    seen: set[str] = set()
    for run in recent:
        if run.blame != "open" and run.verdict != "died" and run.pipeline not in seen:
            seen.add(run.pipeline)
            if run.verdict in ("failed", "over_budget"):
                yield run


def words(name: str) -> str:
    """A cause or a verdict as words."""
    return name.replace("_", " ")


def cause_words(run: LedgerRun) -> str:
    """Why a run failed, and whose it is."""
    if run.cause == "user_code":
        return "an error in the user's code"
    whose = " (the user's code or spec)" if run.blame == "user" else ""
    return f"{words(run.cause) or 'unknown'}{whose}"


def _moment(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0


def _objective_rows(store: StoreDay) -> list[tuple[str, ...]]:
    """Each objective with what is left of its error budget."""
    if not any(result.total for result in store.results):
        return []
    return [
        (
            *(result.name, badge(result.state, _STATES[result.state]), f"{result.objective.target:.1%}"),
            *(share_words(result), good_words(result), budget_words(result)),
            ", ".join(alert.sentence for alert in result.alerts),
        )
        for result in store.results
    ]


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


def age(since: str, now: datetime) -> str:
    """How long ago, in the largest unit; "unknown" if the time is none, or lies in the future."""
    try:
        seconds = (now - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError):
        return "unknown"
    return "unknown" if seconds < 0 else humanize.naturaldelta(seconds, months=False)


def _node_row(node: NodeRecord) -> tuple[str, ...]:
    """A node that is drained, or on which something went wrong."""
    state = badge("drained", "warn") if node.is_drained else badge("in use", "calm")
    figures = [str(node.count(kind)) for kind in ("failure", "straggler", "corrupt_replica")]
    return node.name, state, *figures, node.standing.sentence if node.is_drained and node.standing else ""
