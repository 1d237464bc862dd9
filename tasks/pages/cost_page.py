"""The page about what a month cost: bars by team, pipeline and cause, and tables with the figures. It loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_contracts.month_costs import MonthCosts, MonthLine
from data_contracts.resources import NOTHING as NO_RESOURCES
from infra.quantities import size
from tasks.charts.bars import Bar, bars
from tasks.costs.idle_pools import IdlePool
from tasks.costs.sums import NOT_TAGGED, in_gpu_hours, in_words
from tasks.pages.html import NOTHING, Markup, chart, page, section, table, tag

# Groups with a bar; all are in the table.
_BARS = 12


@dataclass
class _Group:
    """Lines with the same word."""

    word: str
    lines: list[MonthLine]

    @property
    def hours(self) -> float:
        return sum(one.node_seconds for one in self.lines) / 3600

    @property
    def wasted(self) -> float:
        return sum(one.node_seconds for one in self.lines if one.cause != "work") / 3600

    @property
    def money(self) -> str:
        amounts: dict[str, float] = {}
        for one in self.lines:
            if one.amount or not one.unpriced_s:
                amounts[one.currency] = amounts.get(one.currency, 0.0) + one.amount
        unpriced = any(one.unpriced_s for one in self.lines)
        return "unknown" if not amounts else f"{'at least ' if unpriced else ''}{in_words(amounts)}"

    @property
    def energy(self) -> str:
        """In words; what the machines' counters did not measure is estimated, and what has neither is unknown."""
        joules = sum(one.joules for one in self.lines)
        if not joules:
            return "unknown"
        measured = sum(one.used.millijoules or 0 for one in self.lines) / 1000
        least = any(one.node_seconds and not one.joules for one in self.lines)
        estimated = joules - measured > joules * 1e-6
        return f"{'at least ' if least else ''}{joules / 3.6e6:.3g} kWh{' (estimated)' if estimated else ''}"

    @property
    def carbon(self) -> str:
        grams = sum(one.grams for one in self.lines)
        least = any(one.node_seconds and not one.grams for one in self.lines)
        return f"{'at least ' if least else ''}{grams / 1000:.3g} kg" if grams else "unknown"

    @property
    def figures(self) -> tuple[str, ...]:
        used = sum((one.used for one in self.lines), NO_RESOURCES)
        moved = used.written_bytes + used.read_bytes
        return (
            str(len({one.run_id for one in self.lines})),
            f"{self.hours:,.2f}",
            in_gpu_hours(sum(one.gpu_seconds for one in self.lines), sum(one.uncounted_s for one in self.lines)),
            self.money,
            f"{1 - self.wasted / self.hours:.0%}" if self.hours else "–",
            self.energy,
            self.carbon,
            size(moved) if moved else "–",
        )


_HEAD = ("runs", "node-hours", "GPU-hours", "cost", "goodput", "energy", "CO2e", "bytes moved")


_OPTIONAL = ("GPU-hours", "energy", "CO2e", "bytes moved")
_EMPTY = ("unknown", "–", "0.00")


def cost_page(months: Sequence[MonthCosts], idle: Sequence[IdlePool] = ()) -> str:
    """The page of a month, over the stores that were counted.

    Args:
        idle: pools that kept nodes running.
    """
    lines = [line for month in months for line in month.lines]
    whole, name = _Group("", lines), months[0].month if months else ""
    return page(
        f"Cost of {name}",
        tag(
            "header",
            tag("p", "cost", kind="eyebrow"),
            tag("h1", name),
            tag("p", f"{_sentence(whole)} Estimated at the prices of each run's start.", kind="why"),
            kind="calm",
        ),
        _section("By team", "team", lines, lambda one: one.tags.get("team", NOT_TAGGED)),
        _section("By pipeline", "pipeline", lines, lambda one: one.pipeline),
        _section("By cause", "cause", lines, lambda one: one.cause),
        section("Idle pools", *(tag("p", pool.line) for pool in idle)) if idle else NOTHING,
        _missing(months),
    )


def cost_markdown(months: Sequence[MonthCosts]) -> list[tuple[str, ...]]:
    """Rows by pipeline for a page in Prefect: pipeline, runs, node-hours and cost."""
    groups = _groups([line for month in months for line in month.lines], lambda one: one.pipeline)
    return [(one.word, *one.figures[:2], one.money) for one in groups]


def _sentence(whole: _Group) -> str:
    if not whole.lines:
        return "No run used anything."
    runs, hours, *_ = whole.figures
    return f"{runs} {'run' if runs == '1' else 'runs'}, {hours} node-hours, {whole.money}."


def _groups(lines: Sequence[MonthLine], word: Callable[[MonthLine], str]) -> list[_Group]:
    found: dict[str, _Group] = {}
    for one in lines:
        found.setdefault(word(one), _Group(word(one), [])).lines.append(one)
    return sorted(found.values(), key=lambda group: (-group.hours, group.word))


def _section(title: str, head: str, lines: Sequence[MonthLine], word: Callable[[MonthLine], str]) -> Markup:
    groups = _groups(lines, word)
    drawn = [Bar(one.word, one.hours, one.money, wasted=one.wasted) for one in groups[:_BARS]]
    picture = bars(drawn, f"{title}: node-hours, with what was no work")
    return section(
        title,
        chart(picture, "Node-hours; the red part was no work. At the end of each bar: its cost.") if picture else "",
        _table(head, groups),
    )


def _table(head: str, groups: Sequence[_Group]) -> Markup:
    """The figures, without columns in which nothing is known or used: they would only make the table wide."""
    figures = [one.figures for one in groups]
    shown = [n for n, name in enumerate(_HEAD) if name not in _OPTIONAL or any(row[n] not in _EMPTY for row in figures)]
    rows = [(one.word, *(row[n] for n in shown)) for one, row in zip(groups, figures, strict=True)]
    return table((head, *(_HEAD[n] for n in shown)), rows, numbers=range(1, len(shown) + 1))


def _missing(months: Sequence[MonthCosts]) -> Markup:
    """What the figures lack."""
    said = []
    for name, runs in (
        ("had not ended and count so far", [run for one in months for run in one.so_far]),
        ("have damaged records and are not counted", [run for one in months for run in one.unreadable]),
    ):
        said += [tag("p", f"{len(runs)} runs {name}: {', '.join(runs[:10])}.")] if runs else []
    return section("What is missing", *said) if said else NOTHING
