"""The page about what a month cost: bars by team, pipeline and cause, and tables with the figures. It loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from data_contracts.costs import MonthCosts, MonthLine
from infra.quantities import size
from tasks.charts.plots import Bar, bars
from tasks.costs.sums import Sum, sums
from tasks.pages.html import page

# Groups with a bar; all are in the table.
_BARS = 12
_HEAD = ("runs", "node-hours", "GPU-hours", "cost", "goodput", "energy", "bytes moved")
_OPTIONAL = ("GPU-hours", "energy", "bytes moved")
_EMPTY = ("unknown", "–", "0.00")


def cost_page(months: Sequence[MonthCosts]) -> str:
    """The page of a month, over the stores that were counted."""
    lines, name = _lines(months), months[0].month if months else ""
    return page(
        "cost",
        title=f"Cost of {name}",
        month=name,
        sentence=_sentence(lines),
        groups=[_group(word, lines) for word in ("team", "pipeline", "cause")],
        missing=missing_words(months),
    )


def cost_rows(months: Sequence[MonthCosts]) -> list[tuple[str, ...]]:
    """The figures in a few columns: pipeline, runs, node-hours and cost."""
    return [(*one.words, *_figures(one)[:2], one.money) for one in sums((), ["pipeline"], set(), _lines(months))[0]]


def _lines(months: Sequence[MonthCosts]) -> list[MonthLine]:
    return [line for month in months for line in month.lines]


def _sentence(lines: Sequence[MonthLine]) -> str:
    if not lines:
        return "No run used anything."
    whole = sums((), (), set(), lines)[1]
    runs, hours, *_ = _figures(whole)
    return f"{runs} {'run' if runs == '1' else 'runs'}, {hours} node-hours, {whole.money}."


def _figures(group: Sum) -> tuple[str, ...]:
    """A sum in the columns of `_HEAD`."""
    moved = group.used.written_bytes + group.used.read_bytes
    return (
        str(len(group.runs)),
        f"{group.node_seconds / 3600:,.2f}",
        group.gpu_hours,
        group.money,
        "–" if group.goodput is None else f"{group.goodput:.0%}",
        group.energy or "–",
        size(moved) if moved else "–",
    )


def _group(word: str, lines: Sequence[MonthLine]) -> tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]:
    """The sums by a tag, the pipeline or the cause: the word, bars, and a table's head and rows.

    Columns in which nothing is known or used are left out: they would only make the table wide.
    """
    groups = sums((), [word], set(), lines)[0]
    drawn = [
        Bar(group.words[0], group.node_seconds / 3600, group.money, wasted=group.wasted_s / 3600)
        for group in groups[:_BARS]
    ]
    figures = [_figures(group) for group in groups]
    shown = [n for n, name in enumerate(_HEAD) if name not in _OPTIONAL or any(row[n] not in _EMPTY for row in figures)]
    rows = [(*group.words, *(row[n] for n in shown)) for group, row in zip(groups, figures, strict=True)]
    picture = bars(drawn, f"By {word}: node-hours, with what was not work")
    return word, picture, (word, *(_HEAD[n] for n in shown)), rows


def missing_words(months: Sequence[MonthCosts]) -> list[str]:
    """A sentence for each thing that the figures lack: the rest of the month, runs that work, damaged runs."""
    words = []
    if any(f"{datetime.fromisoformat(one.made).astimezone(UTC):%Y-%m}" <= one.month for one in months):
        words.append(f"{months[0].month} is not over: these are its figures so far.")
    for what, runs in (
        ("Runs that have not ended and count so far", [run for one in months for run in one.so_far]),
        ("Runs whose records are damaged and that are not counted", [run for one in months for run in one.unreadable]),
    ):
        if runs:
            named = f"{', '.join(runs[:10])}{', …' if len(runs) > 10 else ''}"
            words.append(f"{what} ({len(runs)}): {named}.")
    return words
