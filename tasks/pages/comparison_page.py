"""The page that compares two runs or versions."""

from __future__ import annotations

from infra.weights import TensorChange
from tasks.charts.bars import Bar, bars
from tasks.charts.history_panels import SIDES, panels
from tasks.charts.picture import BLUE
from tasks.charts.scales import label
from tasks.pages.comparison import Comparison, MetricRow, Row, Side
from tasks.pages.html import NOTHING, Markup, chart, page, section, table, tag

# Tensors with a bar; all are in the table.
_BARS = 16
_ROWS = 200


def comparison_page(found: Comparison) -> str:
    """The page: what differs first, then part by part."""
    before, after = found.before.name, found.after.name
    return page(
        f"{before} and {after}",
        _head(found),
        _metrics(found),
        _curves(found),
        *(_part(name, rows, before, after) for name, rows in found.parts.items() if rows),
        _weights(found),
        _same(found),
    )


def figure(value: float | None) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else label(value)


def shapes(one: TensorChange) -> str:
    """A tensor's shape such as `16 × 3`, or both where they differ."""
    texts = ["–" if sizes is None else " × ".join(map(str, sizes)) or "one value" for sizes in one.shapes]
    return " → ".join(dict.fromkeys(texts))


def metric_note(one: MetricRow) -> str:
    """What a metric's two values mean."""
    if one.before is None or one.after is None:
        return "not on both"
    rows = "" if one.comparable else ", on other rows"
    return ("equal" if one.better is None else "better" if one.better else "worse") + rows


def _head(found: Comparison) -> Markup:
    lines = [_side(which, side) for which, side in zip(SIDES, (found.before, found.after), strict=True)]
    return tag(
        "header",
        tag("p", "comparison", kind="eyebrow"),
        tag("h1", f"{found.before.name} → {found.after.name}"),
        tag("p", f"{found.sentence}.", kind="why"),
        table(("", "name", "run", "verdict", "version"), lines),
        kind="calm",
    )


def _side(which: str, side: Side) -> tuple[str, ...]:
    report, version = side.facts.report, side.version
    verdict = report.verdict.replace("_", " ") if report is not None else "unfinished"
    named = "–" if version is None else f"{version.name} {version.version}"
    return which, side.name, side.facts.run.run_id, verdict, named


def _metrics(found: Comparison) -> Markup:
    tones = {True: "good", False: "bad", None: ""}
    lines = [
        (
            one.name,
            figure(one.before),
            figure(one.after),
            "–" if one.before is None or one.after is None else f"{one.after - one.before:+.4g}",
            tag("span", metric_note(one), kind=f"tag {tones[one.better]}".strip()),
        )
        for one in found.metrics
    ]
    if not lines:
        return section("Metrics", tag("p", "Neither was evaluated.", kind="soft"))
    return section("Metrics", table(("metric", "before", "after", "difference", "after is"), lines, numbers=(1, 2, 3)))


def _curves(found: Comparison) -> Markup:
    """The logged values of both trainings, in one panel for each quantity."""
    records = []
    for which, side in zip(SIDES, (found.before, found.after), strict=True):
        for record in side.facts.history:
            values = {name: value for name, value in record.items() if name not in ("step", "epoch")}
            named = {f"{name} ({which})": value for name, value in values.items()}
            records.append({"step": record.get("step", 0), **named})
    drawn = [chart(picture) for _, picture in panels(records)]
    return section("Training", tag("div", *drawn, kind="panels")) if drawn else NOTHING


def _part(name: str, rows: list[Row], before: str, after: str) -> Markup:
    lines = [(row.name, _cell(row.before), _cell(row.after)) for row in rows[:_ROWS]]
    more = len(rows) - _ROWS
    rest = tag("p", f"… and {more:,} more; --json has all.", kind="soft") if more > 0 else NOTHING
    return section(name.capitalize(), table(("what", before, after), lines), rest)


def _cell(text: str) -> str:
    return tag("code", text) if text else "–"


def _same(found: Comparison) -> Markup:
    """The parts that do not differ, in one sentence."""
    names = [name for name, rows in found.parts.items() if not rows]
    if not names:
        return NOTHING
    listed = f"{', '.join(names[:-1])} and {names[-1]} are" if len(names) > 1 else f"{names[0]} is"
    return section("The same on both sides", tag("p", f"{listed[:1].upper()}{listed[1:]} the same.", kind="soft"))


def _weights(found: Comparison) -> Markup:
    if found.no_weights:
        return section("Weights", tag("p", found.no_weights, kind="soft"))
    listed = found.weights[:_ROWS]
    changed = [one for one in found.weights if not one.same]
    words = f"{len(changed):,} of {len(found.weights):,} tensors differ."
    drawn = [Bar(one.name, one.relative, f"{one.relative:.1%}", BLUE) for one in changed if one.relative is not None]
    lines = [(one.name, shapes(one), *map(figure, (*one.norms, one.difference, one.largest))) for one in listed]
    head = ("tensor", "shape", "norm before", "norm after", "norm of difference", "largest difference")
    caption = "Norm of the difference, as a share of the norm before"
    return section(
        "Weights",
        tag("p", words, kind="soft"),
        chart(bars(drawn[:_BARS], caption), caption),
        table(head, lines, numbers=(2, 3, 4, 5)),
    )
