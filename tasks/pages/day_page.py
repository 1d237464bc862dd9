"""The page of a day: what needs a person, runs, goodput, objectives, champions, drift, budgets and nodes.

What needs a person is one sentence and one command each, the gravest first. The page loads nothing. It shows no text of
an error and no name of a column: those are on the page of the run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from data_contracts.rules import shown
from infra.quantities import in_two_units
from tasks.charts.picture import BAD, BLUE, GOOD, SERIES, SOFT, WARN
from tasks.charts.plots import Bar, DayColumn, bars, day_columns
from tasks.pages.html import HEAD, NOTHING, Markup, chart, page, section, table, tag
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
    parts = [part for store in day.stores for part in _of_store(day, store, named=len(day.stores) > 1)]
    return page(f"{_TITLE}{_minute(day.now)}", _head(day, asked), _needs_section(asked), *parts)


def day_rows(day: Day) -> tuple[str, str, list[tuple[str, str, str]]]:
    """The page in a few lines: its title, the runs by verdict, and kind, sentence and command of what is needed."""
    asked = needs(day)
    return _title(day, asked), f"{_counts(day)}.", [(words(one.kind), one.sentence, one.command) for one in asked]


def is_day_page(beginning: str) -> bool:
    """Whether a file that begins so is a page of a day."""
    return beginning.startswith(HEAD) and f"<title>{_TITLE}" in beginning


def _head(day: Day, attention: Sequence[AttentionItem]) -> Markup:
    tone = attention[0].tone if attention else ("good" if any(store.runs for store in day.stores) else "calm")
    return tag(
        "header",
        tag("p", f"{_minute(day.since)} to {_minute(day.now)} UTC", kind="eyebrow"),
        tag("h1", _title(day, attention)),
        tag("p", f"{_counts(day)}.", kind="why"),
        kind=tone,
    )


def _counts(day: Day) -> str:
    runs = [run for store in day.stores for run in day.recent(store)]
    return ", ".join(f"{number} {name}" for name, number in _counted(runs).items()) or "No runs"


def _title(day: Day, attention: Sequence[AttentionItem]) -> str:
    if attention:
        return f"{len(attention)} thing{' needs' if len(attention) == 1 else 's need'} a person"
    return "Nothing needs a person" if any(store.runs for store in day.stores) else "No runs yet"


def _needs_section(attention: Sequence[AttentionItem]) -> Markup:
    lines = [
        tag(
            "li",
            tag("span", words(entry.kind), kind=f"tag {entry.tone}"),
            " ",
            entry.sentence,
            tag("div", tag("code", entry.command)),
        )
        for entry in attention
    ]
    return section("What needs a person", tag("ul", *lines)) if lines else NOTHING


def _of_store(day: Day, store: StoreDay, *, named: bool) -> list[Markup]:
    size = f"Runs: {len(store.runs):,} in 28 days." if store.runs else "No runs in 28 days."
    head = section(store.uri, tag("p", size, kind="soft")) if named else NOTHING
    return [
        head,
        _runs(day, store),
        _goodput(day, store),
        objective_section(store),
        champion_section(store, day.now),
        drift_section(store),
        budget_section(store),
        node_section(store),
    ]


def _runs(day: Day, store: StoreDay) -> Markup:
    recent = day.recent(store)
    picture = day_columns(_strip(day, store), _COLOURS, f"Runs of the last {STRIP_DAYS} days by verdict", "runs")
    rows = [_row(run, day.now) for run in recent[:MOST_RUNS]]
    more = len(recent) - len(rows)
    return section(
        "Runs",
        chart(picture, f"Runs of the last {STRIP_DAYS} days by verdict, by the day (UTC) on which they ended."),
        table(("pipeline", "verdict", "ended", "took", "reached", "run"), rows, numbers=[3]),
        tag("p", f"{more:,} more; `trainwright status` lists the newest.", kind="soft") if more > 0 else NOTHING,
    )


def _row(run: LedgerRun, now: datetime) -> tuple[str, ...]:
    group = group_of(run)
    said = words(run.verdict) if run.verdict != "failed" else f"failed: {words(run.cause)}"
    ended = "" if run.blame == "open" else _minute(datetime.fromtimestamp(run.ended, UTC))
    took = now.timestamp() - run.began - run.waited_s if run.verdict == "running" else run.seconds
    verdict = tag("span", said, kind=f"tag {_TONES.get(group, 'warn')}")
    return run.pipeline, verdict, ended, in_two_units(took), run.stage, tag("code", run.run_id)


def _strip(day: Day, store: StoreDay) -> list[DayColumn]:
    return [
        DayColumn(name, _counted(runs), str(len(runs)) if runs else "")
        for name, runs in _by_day(day, store.runs).items()
    ]


def _goodput(day: Day, store: StoreDay) -> Markup:
    """Node-hours by day: work, and what was none; the causes of the waste in words."""
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
    said = f"Goodput {causes.get('work', 0.0) / whole:.1%}. Not work: {named or 'nothing'}." if whole > 0 else ""
    return section(
        "Goodput",
        chart(
            picture, "Node-hours by day; above each column the share that was work (docs/cost.md explains the causes)."
        ),
        tag("p", said) if said else NOTHING,
    )


def _share(parts: Mapping[str, float]) -> str:
    whole = sum(parts.values())
    return f"{parts.get('work', 0.0) / whole:.0%}" if whole > 0 else ""


def group_of(run: LedgerRun) -> str:
    """The word by which a run is counted."""
    if run.verdict in ("promoted", "canary", "unchanged"):
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
    rows = [(f"{one.model}@{one.alias}", str(one.version), age(one.since, now)) for one in store.champions[:_MOST_ROWS]]
    more = len(store.champions) - len(rows)
    return section(
        "Champions",
        table(("alias", "version", "age"), rows, numbers=[1]),
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
    known = [one for one in store.budgets if one.period != "each run"][:_MOST_ROWS]
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
    for node in store.nodes[:_MOST_ROWS]:
        drained = node.is_drained
        why = node.standing.sentence if drained and node.standing else ""
        state = tag("span", "drained" if drained else "in use", kind=f"tag {'warn' if drained else 'calm'}")
        figures = [str(node.count(kind)) for kind in ("failure", "straggler", "corrupt_replica")]
        rows.append((node.name, state, *figures, why))
    head = ("node", "state", "failures", "stragglers", "corrupt replicas", "why")
    return section("Nodes", table(head, rows, numbers=[2, 3, 4]))
