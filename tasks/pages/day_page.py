"""The page of a day: what needs a person, runs, goodput, objectives, champions, drift, budgets and nodes.

It loads nothing. It shows no text of an error and no name of a column: those are on the page of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from infra.quantities import in_two_units
from tasks.charts.day_columns import DayColumn, day_columns
from tasks.charts.picture import BAD, BLUE, GOOD, SERIES, SOFT, WARN
from tasks.pages.day_attention import AttentionItem, needs, words
from tasks.pages.day_tables import budget_section, champion_section, drift_section, node_section, objective_section
from tasks.pages.html import HEAD, NOTHING, Markup, chart, page, section, table, tag
from tasks.queries.day import STRIP_DAYS, Day, StoreDay
from tasks.slo.ledger import LedgerRun

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


def day_page(day: Day) -> str:
    """The page of one or several stores."""
    asked = needs(day)
    parts = [part for store in day.stores for part in _of_store(day, store, named=len(day.stores) > 1)]
    return page(f"{_TITLE}{_minute(day.now)}", _head(day, asked), _needs(asked), *parts)


def day_rows(day: Day) -> tuple[str, str, list[tuple[str, str, str]]]:
    """The page in a few lines: its title, the runs by verdict, and kind, sentence and command of what is needed."""
    asked = needs(day)
    return _title(day, asked), f"{_counts(day)}.", [(words(one.kind), one.sentence, one.command) for one in asked]


def is_day_page(beginning: str) -> bool:
    """Whether a file that begins so is a page of a day."""
    return beginning.startswith(HEAD) and f"<title>{_TITLE}" in beginning


def _head(day: Day, asked: Sequence[AttentionItem]) -> Markup:
    tone = asked[0].tone if asked else ("good" if any(store.runs for store in day.stores) else "calm")
    return tag(
        "header",
        tag("p", _since(day), kind="eyebrow"),
        tag("h1", _title(day, asked)),
        tag("p", f"{_counts(day)}.", kind="why"),
        kind=tone,
    )


def _counts(day: Day) -> str:
    runs = [run for store in day.stores for run in day.recent(store)]
    return ", ".join(f"{number} {name}" for name, number in _counted(runs).items()) or "No runs"


def _title(day: Day, asked: Sequence[AttentionItem]) -> str:
    if asked:
        return f"{len(asked)} thing{' needs' if len(asked) == 1 else 's need'} a person"
    return "Nothing needs a person" if any(store.runs for store in day.stores) else "No runs yet"


def _since(day: Day) -> str:
    return f"{_minute(day.since)} to {_minute(day.now)} UTC"


def _needs(asked: Sequence[AttentionItem]) -> Markup:
    lines = [
        tag(
            "li",
            tag("span", words(one.kind), kind=f"tag {one.tone}"),
            " ",
            one.sentence,
            tag("div", tag("code", one.command)),
        )
        for one in asked
    ]
    return section("What needs a person", tag("ul", *lines)) if lines else NOTHING


def _of_store(day: Day, store: StoreDay, *, named: bool) -> list[Markup]:
    head = section(store.uri, tag("p", _size(store), kind="soft")) if named else NOTHING
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


def _size(store: StoreDay) -> str:
    return f"Runs: {len(store.runs):,} in 28 days." if store.runs else "No runs in 28 days."


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
