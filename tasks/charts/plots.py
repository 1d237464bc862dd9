"""The charts of pages: curves, parallel axes, bars, columns of days, squares of counts, boxes of a lineage, and the
gates' forest plot.

What a training logged is drawn as panels of curves: curves of one quantity, such as train_loss and val_loss, share one.
The forest plot shows for each gate its value with its interval, the limit, and the side on which it is met.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from data_contracts.pipeline_spec import GateSpec, PipelineSpec
from data_contracts.quoting import one_line
from data_contracts.records import Bar as ThenAndNow
from data_contracts.records import GateResult
from tasks.charts.picture import (
    BAD,
    BLUE,
    GOOD,
    GRID,
    PANEL,
    PAPER,
    SERIES,
    SOFT,
    WARN,
    Picture,
    Scale,
    finite,
    fitted,
    label,
    scale_of,
    width_of,
)

# A small picture without labels, in colours that serve on white and on black.
_DRIFT_WIDTH, _DRIFT_HEIGHT, _DRIFT_GAP = 240, 60, 1
_THEN, _NOW = "#9aa5b1", "#d9480f"
_CURVES_WIDTH, _CURVES_HEIGHT = 520, 250
_CURVES_LEFT, _CURVES_RIGHT, _CURVES_TOP, _CURVES_BOTTOM = 58, 508, 30, 214
# Of the legend.
_CURVES_LEGEND = 18
# More points than this are no longer seen apart.
_POINTS = 300
_WIDE_RATIO = 50
# More panels than this are a list, not a picture.
MOST_PANELS = 8
# The run of two that a curve is of, where a page compares them.
SIDES = ("before", "after")
_SIDE = re.compile(rf" \(({'|'.join(SIDES)})\)$")
_PLACE = re.compile(r"^(train|training|val|valid|validation|test)[_/.]|[_/.](train|val|valid|test|step|epoch)$")
_BARS_WIDTH, _BARS_ROW, _BARS_LEFT = 640, 30, 190
# As wide as a telephone shows without scrolling.
_DAYS_WIDTH, _DAYS_LEFT, _DAYS_RIGHT, _DAYS_LEGEND, _DAYS_HIGH, _DAYS_BELOW = 320, 34, 318, 18, 130, 22
_PARALLEL_GAP, _PARALLEL_HEIGHT = 150, 280
# More classes cannot be told apart in a picture.
MOST_CLASSES = 12
OTHER = "others"
_BOX_WIDTH, _BOX_HEIGHT, _BOX_GAP, _BOX_BELOW = 132, 84, 24, 128
_GATES_WIDTH, _GATES_ROW, _GATES_TOP = 1000, 68, 30
_GATES_LEFT, _GATES_RIGHT = 270, 760
GATE_COLOURS = {"met": GOOD, "not met": BAD, "insufficient evidence": WARN, "not compared": WARN}


@dataclass(frozen=True)
class Curve:
    """One metric's values, by step."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """A step that is worth a line, such as the checkpoint that was handed over."""

    step: float
    words: str


def curves(drawn: Sequence[Curve], marks: Sequence[Mark] = (), title: str = "", below: str = "step") -> str:
    """A panel of at most six curves; "" if none has a finite value.

    Args:
        below: what the values are drawn over.
    """
    shown = [one for one in map(_thinned, drawn[: len(SERIES)]) if len(one.steps)]
    if not shown:
        return ""
    values = [value for one in shown for value in one.values]
    steps = [step for one in shown for step in one.steps]
    room = float(_CURVES_WIDTH - _CURVES_LEFT)
    named = _in_lines([fitted(one.name, 12, room - 26) for one in shown], room, 33)
    more = _CURVES_LEGEND * (len(named) - 1)
    top, bottom = _CURVES_TOP + more, _CURVES_BOTTOM + more
    words = title or f"{', '.join(one.name for one in shown)} over the steps of the training"
    picture = Picture(_CURVES_WIDTH, _CURVES_HEIGHT + more, words)
    wide = min(values) > 0 and max(values) / min(values) > _WIDE_RATIO
    across = scale_of([*steps, *(one.step for one in marks)], _CURVES_LEFT, _CURVES_RIGHT, pad=0.02)
    up = scale_of(values, bottom, top + 8, log=wide)
    _axes(picture, across, up, f"{below} (values on a logarithmic scale)" if wide else below)
    for mark in marks:
        x = across.at(mark.step)
        picture.line((x, top + 4, x, bottom), SOFT, 1.2, "3 3")
        picture.tip((x - 4, top, 8, bottom - top), f"{below} {mark.step:g}: {mark.words}")
    for colour, one in zip(SERIES, shown, strict=False):
        points = [(across.at(step), up.at(value)) for step, value in zip(one.steps, one.values, strict=True)]
        if len(points) > 1:
            picture.path(points, colour)
        for point in points if len(points) <= 20 else points[-1:]:
            picture.dot(*point, 2.5, colour)
    _curves_legend(picture, named)
    return picture.svg()


def _axes(picture: Picture, across: Scale, up: Scale, below: str) -> None:
    """Grid lines and labels on both axes."""
    for value, words in up.ticks(5):
        y = up.at(value)
        picture.line((across.start, y, across.end, y))
        picture.text((across.start - 8, y + 4), words, size=11, anchor="end", fill=SOFT, room=across.start - 10)
    end = -math.inf
    for value, words in across.ticks(6):
        x, half = across.at(value), width_of(words, 11) / 2
        if x - half > end + 8 and x + half <= picture.width:
            picture.line((x, up.start, x, up.start + 4), SOFT)
            picture.text((x, up.start + 17), words, size=11, anchor="middle", fill=SOFT)
            end = x + half
    picture.line((across.start, up.start, across.end, up.start), SOFT)
    picture.text(((across.start + across.end) / 2, up.start + 33), below, size=11, anchor="middle", fill=SOFT)


def _in_lines(names: Sequence[str], room: float, more: float) -> list[list[str]]:
    """The names of a legend, as many in a line as fit; each needs so much more than its text."""
    lines: list[list[str]] = []
    left = 0.0
    for name in names:
        needed = more + width_of(name, 12)
        if needed > left:
            lines.append([])
            left = room
        lines[-1].append(name)
        left -= needed
    return lines


def _curves_legend(picture: Picture, lines: Sequence[Sequence[str]]) -> None:
    """The names at the top, each beside its colour."""
    colours = iter(SERIES)
    for number, names in enumerate(lines):
        x, y = float(_CURVES_LEFT), 12 + _CURVES_LEGEND * number
        for name in names:
            picture.line((x, y, x + 14, y), next(colours), 3)
            picture.text((x + 19, y + 4), name, size=12)
            x += 33 + width_of(name, 12)


@dataclass(frozen=True)
class Axis:
    """One of several axes beside each other.

    Attributes:
        values: where each line crosses it: a number, a text, or None if the line has no value there.
        log: whether numbers are spread by their order of magnitude.
    """

    name: str
    values: Sequence[float | str | None]
    log: bool = False


def parallel(axes: Sequence[Axis], marked: int | None, title: str) -> str:
    """A line for each choice of values, across an axis for each; "" without lines.

    Args:
        marked: the number of the line that is drawn in front.
    """
    count = len(axes[0].values) if axes else 0
    if not count:
        return ""
    picture = Picture(_PARALLEL_GAP * len(axes), _PARALLEL_HEIGHT, title)
    places = [_PARALLEL_GAP * (number + 0.5) for number in range(len(axes))]
    heights = [_on_axis(picture, axis, x) for axis, x in zip(axes, places, strict=True)]
    for line in sorted(range(count), key=lambda line: line == marked):
        points = [(x, ys[line]) for x, ys in zip(places, heights, strict=True) if ys[line] is not None]
        if len(points) > 1:
            is_marked = line == marked
            more = "" if is_marked else ' stroke-opacity="0.45"'
            picture.path(points, SERIES[0] if is_marked else SOFT, 2.5 if is_marked else 1.2, more)  # type: ignore[arg-type]
    return picture.svg()


def _on_axis(picture: Picture, axis: Axis, x: float) -> list[float | None]:
    """Draw an axis with its labels; returns the height of each line on it."""
    top, bottom = 34.0, float(_PARALLEL_HEIGHT - 12)
    picture.line((x, top, x, bottom), SOFT)
    picture.text((x, 16), axis.name, size=12, anchor="middle", room=_PARALLEL_GAP - 8, bold=True)
    texts = sorted({value for value in axis.values if isinstance(value, str)})
    numbers = finite(value for value in axis.values if isinstance(value, int | float))
    scale = scale_of(range(len(texts)) if texts else numbers, bottom, top, log=axis.log)
    ticks = [(float(place), text) for place, text in enumerate(texts)] or scale.ticks(5)
    for value, words in ticks:
        picture.text((x + 6, scale.at(value) + 4), words, size=11, fill=SOFT, room=_PARALLEL_GAP / 2)
    places = [texts.index(value) if isinstance(value, str) else value for value in axis.values]
    return [None if place is None or not math.isfinite(place) else scale.at(place) for place in places]


def calibration(shares: Sequence[tuple[float, float, int]], title: str) -> str:
    """How often it was so (second) beside how sure the model was (first), both 0 to 1; "" if there is nothing.

    Args:
        shares: for each bin: mean confidence, share that came true, rows.
    """
    known = [(sure, true, rows) for sure, true, rows in shares if rows and math.isfinite(sure + true)]
    if not known:
        return ""
    size = 330
    picture = Picture(size, size, title)
    across, up = Scale(0, 1, 52, size - 14), Scale(0, 1, size - 48, 14)
    _axes(picture, across, up, "how sure the model was")
    picture.line((across.start, up.start, across.end, up.end), SOFT, 1.2, "4 3")
    points = [(across.at(sure), up.at(true)) for sure, true, _ in known]
    if len(points) > 1:
        picture.path(points, SERIES[0])
    most = max(rows for _, _, rows in known)
    for (x, y), (sure, true, rows) in zip(points, known, strict=True):
        picture.dot(x, y, 3 + 6 * math.sqrt(rows / most), SERIES[0], ' fill-opacity="0.75"')
        picture.tip((x - 9, y - 9, 18, 18), f"sure {sure:.1%}, right {true:.1%}, {rows:,} rows")
    return picture.svg()


def _thinned(curve: Curve) -> Curve:
    """The curve with at most about `_POINTS` points: of each stretch its smallest and its largest value."""
    kept = [
        (step, value) for step, value in zip(curve.steps, curve.values, strict=True) if len(finite((step, value))) == 2
    ]
    if len(kept) > _POINTS:
        pieces = np.array_split(np.asarray(kept), _POINTS // 2)
        at = (sorted({int(piece[:, 1].argmin()), int(piece[:, 1].argmax())}) for piece in pieces)
        kept = [tuple(piece[one]) for piece, ones in zip(pieces, at, strict=True) for one in ones]
    return Curve(curve.name, [step for step, _ in kept], [value for _, value in kept])


def panels(history: Sequence[Mapping[str, Any]], marks: Sequence[Mark] = ()) -> list[tuple[str, str]]:
    """(quantity, picture) of each quantity that was logged, the loss first.

    Args:
        history: records `{"step", "epoch", name: value, …}`, oldest first.
    """
    values: dict[str, tuple[list[float], list[float]]] = {}
    for record in history:
        for name, value in record.items():
            if name not in ("step", "epoch") and isinstance(value, int | float) and not isinstance(value, bool):
                steps, known = values.setdefault(str(name), ([], []))
                steps.append(float(record.get("step", 0)))
                known.append(float(value))
    grouped: dict[str, list[Curve]] = {}
    for name in sorted(values):
        own = _SIDE.sub("", name)
        grouped.setdefault(_PLACE.sub("", own) or own, []).append(Curve(name, *values[name]))
    names = sorted(grouped, key=lambda name: ("loss" not in name, name))
    drawn = [(name, curves(sorted(grouped[name], key=_panel_order), marks)) for name in names[:MOST_PANELS]]
    return [(name, picture) for name, picture in drawn if picture]


def _panel_order(curve: Curve) -> tuple[bool, str, bool]:
    return not curve.name.startswith("train"), _SIDE.sub("", curve.name), curve.name.endswith(f"({SIDES[1]})")


@dataclass(frozen=True)
class Bar:
    """A bar: its name, length, the figure at its end, and its colour.

    Attributes:
        wasted: how much of it, from its end, was for nothing.
    """

    name: str
    value: float
    figure: str
    colour: str = BLUE
    wasted: float = 0.0


def bars(drawn: Sequence[Bar], title: str, *, low: float = 0.0, high: float | None = None) -> str:
    """Horizontal bars from `low` to `high` (the largest by default), one below the other; "" if there are none."""
    known = [one for one in drawn if finite([one.value])]
    if not known:
        return ""
    room = max(width_of(one.figure, 12) for one in known) + 10
    picture = Picture(_BARS_WIDTH, _BARS_ROW * len(known) + 6, title)
    high = max(max(one.value for one in known), low + 1e-9) if high is None else high
    scale = Scale(low, high, _BARS_LEFT, _BARS_WIDTH - min(room, 300))
    for number, one in enumerate(known):
        top = 3 + number * _BARS_ROW
        end, good = scale.at(one.value), scale.at(one.value - one.wasted)
        picture.text((_BARS_LEFT - 12, top + 19), one.name, size=13, anchor="end", room=_BARS_LEFT - 14)
        picture.rect((_BARS_LEFT, top + 5, scale.end - _BARS_LEFT, 19), PANEL, radius=3)
        if one.wasted <= 0 or good - _BARS_LEFT >= 0.01:
            more = ' fill-opacity="0.85"'
            picture.rect((_BARS_LEFT, top + 5, max(good - _BARS_LEFT, 1.5), 19), one.colour, radius=3, more=more)
        if one.wasted > 0:
            more = ' fill-opacity="0.8"'
            picture.rect((good, top + 5, max(end - good, 1.5), 19), BAD, radius=3, more=more)
        picture.text((scale.end + 8, top + 19), one.figure, size=12, fill=SOFT, room=_BARS_WIDTH - scale.end - 8)
        picture.tip((0, top, _BARS_WIDTH, _BARS_ROW), f"{one.name}: {one.figure}")
    return picture.svg()


def histogram(counts: Sequence[int], edges: Sequence[float], title: str, below: str) -> str:
    """Counts between edges (one more than counts); "" if nothing is counted."""
    if not sum(counts) or len(finite(edges)) != len(edges) or edges[-1] <= edges[0]:
        return ""
    picture = Picture(420, 230, title)
    across, up = Scale(edges[0], edges[-1], 56, 408), Scale(0, max(counts) * 1.05, 186, 14)
    _axes(picture, across, up, below)
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        x, y = across.at(left), up.at(count)
        picture.rect((x, y, max(across.at(right) - x - 1, 0.8), up.start - y), BLUE, more=' fill-opacity="0.85"')
        picture.tip((x, up.end, across.at(right) - x, up.start - up.end), f"{label(left)} to {label(right)}: {count:,}")
    return picture.svg()


def then_and_now(drawn: Sequence[ThenAndNow], title: str) -> Markup:
    """A small picture of a column's values: then in grey, now in orange before it; empty if there are none."""
    if not drawn:
        return Markup()
    highest = max(max(bar.then, bar.now) for bar in drawn) or 1.0
    step = _DRIFT_WIDTH / len(drawn)
    parts = []
    for at, bar in enumerate(drawn):
        for share, colour, left, width in ((bar.then, _THEN, 0.0, 1.0), (bar.now, _NOW, 0.25, 0.5)):
            height = _DRIFT_HEIGHT * share / highest
            x, wide = at * step + left * step, max(width * step - _DRIFT_GAP, 0.5)
            place = f'x="{x:.1f}" y="{_DRIFT_HEIGHT - height:.1f}" width="{wide:.1f}" height="{height:.1f}"'
            parts.append(f'<rect {place} fill="{colour}"/>')
    size = f'viewBox="0 0 {_DRIFT_WIDTH} {_DRIFT_HEIGHT}" width="{_DRIFT_WIDTH}" height="{_DRIFT_HEIGHT}"'
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><title>{escape(one_line(title))}</title>{"".join(parts)}</svg>'
    )


@dataclass(frozen=True)
class DayColumn:
    """A day such as 2026-11-26, its parts by name with values from 0, and the figure above its column."""

    day: str
    parts: Mapping[str, float]
    figure: str = ""


def day_columns(days: Sequence[DayColumn], colours: Mapping[str, str], title: str, unit: str) -> str:
    """The columns side by side, from the oldest day to the newest; "" if no part has a value.

    Args:
        colours: of each part, in the order from below; parts that no day has are left out of the legend.
        unit: of the values, for tooltips.
    """
    sums = [sum(finite(day.parts.values())) for day in days]
    if not days or max(sums) <= 0:
        return ""
    names = [name for name in colours if any(day.parts.get(name, 0) > 0 for day in days)]
    lines = _in_lines(names, _DAYS_RIGHT - _DAYS_LEFT, 30)
    top = _DAYS_LEGEND * len(lines) + 18
    picture = Picture(_DAYS_WIDTH, top + _DAYS_HIGH + _DAYS_BELOW, title)
    _days_legend(picture, lines, colours)
    up = Scale(0, max(sums), top + _DAYS_HIGH, top)
    whole = all(float(value).is_integer() for day in days for value in day.parts.values())
    ticks = [
        (up.at(value), words.removesuffix(".0"))
        for value, words in up.ticks(3)
        if not whole or float(value).is_integer()
    ]
    left = max(_DAYS_LEFT, *(width_of(words, 11) + 8 for _, words in ticks))
    for y, words in ticks:
        picture.line((left, y, _DAYS_RIGHT, y), GRID)
        picture.text((left - 6, y + 4), words, size=11, anchor="end", fill=SOFT)
    wide = (_DAYS_RIGHT - left) / len(days)
    for number, day in enumerate(days):
        x = left + number * wide
        _column(picture, day, names, colours, up, (x + wide * 0.14, wide * 0.72))
        picture.text((x + wide / 2, top + _DAYS_HIGH + 16), day.day[-2:], size=11, anchor="middle", fill=SOFT)
        said = ", ".join(f"{name} {day.parts[name]:,.4g}" for name in names if day.parts.get(name, 0) > 0)
        picture.tip((x, top, wide, _DAYS_HIGH + _DAYS_BELOW), f"{day.day}: {said or 'nothing'} ({unit})")
    return picture.svg()


def _column(
    picture: Picture,
    day: DayColumn,
    names: Sequence[str],
    colours: Mapping[str, str],
    up: Scale,
    place: tuple[float, float],
) -> None:
    left, wide = place
    below = 0.0
    for name in names:
        value = day.parts.get(name, 0.0)
        if finite([value]) and value > 0:
            y = up.at(below + value)
            picture.rect((left, y, wide, max(up.at(below) - y, 1.0)), colours[name], more=' fill-opacity="0.88"')
            below += value
    if day.figure:
        picture.text((left + wide / 2, up.at(below) - 5), day.figure, size=9, anchor="middle")


def _days_legend(picture: Picture, lines: Sequence[Sequence[str]], colours: Mapping[str, str]) -> None:
    for number, names in enumerate(lines):
        x, y = float(_DAYS_LEFT), number * _DAYS_LEGEND + 2
        for name in names:
            picture.rect((x, y, 11, 11), colours[name], radius=2)
            picture.text((x + 16, y + 10), name, size=12, fill=SOFT)
            x += width_of(name, 12) + 30


def confusion_counts(
    truth: Sequence[object] | NDArray, prediction: Sequence[object] | NDArray
) -> tuple[list[str], NDArray]:
    """The classes, and how many rows of each (line) were predicted as each (column).

    Beyond the `MOST_CLASSES` the rarest are counted together, as `others`.
    """
    classes, codes = np.unique(np.concatenate([np.asarray(truth), np.asarray(prediction)]), return_inverse=True)
    rows = len(truth)
    number = len(classes)
    names = [str(one) for one in classes.tolist()]
    if number > MOST_CLASSES:
        often = np.bincount(codes[:rows], minlength=number)
        kept = np.sort(np.argsort(-often, kind="stable")[: MOST_CLASSES - 1])
        place = np.full(number, len(kept))
        place[kept] = np.arange(len(kept))
        codes, names, number = place[codes], [*(names[one] for one in kept), OTHER], len(kept) + 1
    counts = np.bincount(codes[:rows] * number + codes[rows:], minlength=number * number)
    return names, counts.reshape(number, number)


def confusion(names: Sequence[str], counts: NDArray) -> str:
    """The confusion matrix: right rows green, wrong rows red, the darker the larger a share of their line."""
    number = len(names)
    if not number or not counts.sum():
        return ""
    cell, left, top = (64 if number <= 4 else 46), 120, 64
    picture = Picture(
        left + cell * number + 8, top + cell * number + 8, "How many rows of each class were predicted as each"
    )
    picture.text((left + cell * number / 2, 18), "predicted", size=12, anchor="middle", fill=SOFT)
    picture.text((left - 10, top - 14), "truth", size=12, anchor="end", fill=SOFT)
    totals = counts.sum(axis=1)
    for row, name in enumerate(names):
        middle = cell * row + cell / 2
        picture.text((left - 10, top + middle + 4), name, size=12, anchor="end", room=left - 14)
        picture.text((left + middle, top - 14), name, size=12, anchor="middle", room=cell - 6)
        for column, other in enumerate(names):
            count = int(counts[row, column])
            share = count / totals[row] if totals[row] else 0.0
            box = (left + cell * column + 1, top + cell * row + 1, cell - 2.0, cell - 2.0)
            picture.rect(box, PANEL, radius=3)
            if count:
                more = f' fill-opacity="{0.12 + 0.6 * share:.2f}"'
                # Among rare classes together nobody can say which rows are right.
                right = BLUE if row == column and name == OTHER else GOOD
                picture.rect(box, right if row == column else BAD, radius=3, more=more)
            place = (box[0] + box[2] / 2, box[1] + box[3] / 2 + 4)
            picture.text(place, short(count), size=12, anchor="middle", room=cell - 4, bold=row == column)
            picture.tip(box, f"truth {name}, predicted {other}: {count:,} rows, {share:.1%} of {name}")
    return picture.svg()


def residuals(truth: NDArray, prediction: NDArray) -> str:
    """Residuals (prediction minus truth) over the truth, as squares that are the darker the more rows they hold."""
    off = prediction - truth
    known = np.isfinite(truth) & np.isfinite(off)
    if not known.any():
        return ""
    (low, high), (least, most) = _residuals_span(truth[known]), _residuals_span(np.append(off[known], 0.0))
    counts, _, _ = np.histogram2d(
        np.clip(truth[known], low, high),
        np.clip(off[known], least, most),
        bins=(36, 24),
        range=((low, high), (least, most)),
    )
    picture = Picture(520, 280, "Residuals over the truth: prediction minus truth")
    across, up = Scale(low, high, 64, 508), Scale(least, most, 236, 14)
    _axes(picture, across, up, "truth (up: prediction minus truth)")
    wide, tall = (across.end - across.start) / 36, (up.start - up.end) / 24
    for x, y in np.argwhere(counts):
        depth = 0.15 + 0.8 * float(np.sqrt(counts[x, y] / counts.max()))
        box = (across.start + x * wide, up.start - (y + 1) * tall, wide, tall)
        picture.rect(box, BLUE, more=f' fill-opacity="{depth:.2f}"')
    picture.line((across.start, up.at(0), across.end, up.at(0)), SOFT, 1.5, "4 3")
    return picture.svg()


def short(count: int) -> str:
    """A count in few characters."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.3g}{unit}"
    return str(count)


def _residuals_span(values: NDArray) -> tuple[float, float]:
    """Where the middle 99 % of the values lie."""
    low, high = (float(one) for one in np.percentile(values, [0.5, 99.5]))
    if min(values.min(), 0) <= 0 <= values.max():
        low, high = min(low, float(max(values.min(), 0))), max(high, 0.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


@dataclass(frozen=True)
class Box:
    """One part of the lineage.

    Attributes:
        kind: such as `dataset`; what: one short line; id: the first characters of its id, or "".
        reached: False if the run did not get that far.
        reused: whether an earlier result was used.
        from_below: a part that entered here, drawn below: its kind, a line, an id.
    """

    kind: str
    what: str
    id: str = ""
    reached: bool = True
    reused: bool = False
    from_below: tuple[str, str, str] | None = None


def lineage(boxes: Sequence[Box]) -> str:
    """The boxes from left to right with arrows between them; "" if the run reached none."""
    if not any(box.reached for box in boxes):
        return ""
    high = _BOX_HEIGHT + 4 + (_BOX_BELOW if any(box.from_below for box in boxes) else 0)
    picture = Picture(len(boxes) * (_BOX_WIDTH + _BOX_GAP) - _BOX_GAP + 4, high, "Where the model comes from")
    for number, box in enumerate(boxes):
        left = 2 + number * (_BOX_WIDTH + _BOX_GAP)
        _draw_box(picture, left, 2, (box.kind, box.what, box.id), box)
        if number:
            there = box.reached and boxes[number - 1].reached
            _arrow(
                picture, (left - _BOX_GAP + 3, 2 + _BOX_HEIGHT / 2), (left - 3, 2 + _BOX_HEIGHT / 2), faint=not there
            )
        if box.from_below:
            _draw_box(picture, left, 2 + _BOX_BELOW, box.from_below, Box("", ""))
            middle = left + _BOX_WIDTH / 2
            _arrow(picture, (middle, _BOX_BELOW - 2), (middle, _BOX_HEIGHT + 6), faint=False)
    return picture.svg()


def _draw_box(picture: Picture, left: float, top: float, words: tuple[str, str, str], box: Box) -> None:
    dash = "" if box.reached and not box.reused else ' stroke-dasharray="5 4"'
    stroke = BLUE if box.reached else SOFT
    picture.rect((left, top, _BOX_WIDTH, _BOX_HEIGHT), PAPER, radius=8)
    more = f' stroke="{stroke}" stroke-width="1.5"{dash}' + ("" if box.reached else ' stroke-opacity="0.6"')
    picture.rect((left, top, _BOX_WIDTH, _BOX_HEIGHT), PANEL, radius=8, more=more)
    kind, what, identity = words
    picture.text((left + 12, top + 24), kind, size=13, bold=True, room=_BOX_WIDTH - 24)
    picture.text((left + 12, top + 46), what if box.reached else "not reached", size=12, room=_BOX_WIDTH - 24)
    picture.text((left + 12, top + 67), identity, size=11, fill=SOFT, room=_BOX_WIDTH - 24)


def _arrow(picture: Picture, start: tuple[float, float], end: tuple[float, float], *, faint: bool) -> None:
    picture.line((*start, *end), SOFT, 1.5, "3 3" if faint else "")
    (x, y), across = end, start[1] == end[1]
    corners = [(x, y), (x - 6, y - 4), (x - 6, y + 4)] if across else [(x, y), (x - 4, y + 6), (x + 4, y + 6)]
    picture.area(corners, SOFT)


def forest_rows(gates: Sequence[GateResult], spec: PipelineSpec) -> list[Gate]:
    """One row for each gate; the spec says on which side it is met, if the results are of its gates."""
    wanted = spec.promote.gates
    alike = len(wanted) == len(gates) and all(a.metric == b.name for a, b in zip(gates, wanted, strict=True))
    known: Sequence[GateSpec | None] = wanted if alike else [None] * len(gates)
    return [_gate_row(gate, one, _sign(gate, spec)) for gate, one in zip(gates, known, strict=True)]


def _sign(gate: GateResult, spec: PipelineSpec) -> int:
    """-1 if the gate's metric is better when it is smaller."""
    metric = spec.evaluate.metrics.get(gate.metric.rpartition("/")[2])
    return -1 if metric is not None and metric.mode == "min" else 1


def outcome(gate: GateResult) -> str:
    """How a gate ended, in words."""
    if gate.skipped:
        return "not compared"
    if gate.evidence is not None and gate.evidence.verdict == "insufficient":
        return "insufficient evidence"
    return "met" if gate.met else "not met"


def _gate_row(gate: GateResult, spec: GateSpec | None, sign: int) -> Gate:
    name = f"{gate.metric} · {gate.slice}" if gate.slice else gate.metric
    evidence = gate.evidence
    if gate.champion_value is not None or (spec is not None and spec.compares):
        return _gain_row(gate, spec, name, sign)
    if spec is not None:
        above, gap = spec.min is not None, spec.max_gap is not None
    else:
        above, gap = (gate.value >= gate.bound) == gate.met, False
    condition = f"{'gap between slices' if gap else 'value'} {'at least' if above else 'at most'} {label(gate.bound)}"
    if evidence is not None:
        condition += f", {100 * evidence.confidence:.4g} % confidence"
    if missing := _missing(gate):
        return Gate(name, condition, None, gate.bound, above, outcome(gate), missing=missing)
    return Gate(
        name=name,
        condition=condition,
        value=gate.value,
        interval=None if evidence is None else (evidence.low, evidence.high),
        limit=gate.bound,
        good_above=above,
        outcome=outcome(gate),
        champion=gate.champion_value,
        scale=f"{gate.metric} {'gap' if gap else 'value'}",
    )


def _gain_row(gate: GateResult, spec: GateSpec | None, name: str, sign: int) -> Gate:
    """A gate on the gain over the champion, in the direction in which the metric is better."""
    limit = gate.bound
    condition = f"gain of at least {label(limit)}"
    if limit < 0:
        condition = f"loss of at most {label(-limit)}"
    elif spec is not None and spec.confidence is not None:
        condition = f"gain above {label(limit)}"
    interval, value = None, None
    if gate.evidence is not None:
        interval, value = (gate.evidence.low, gate.evidence.high), gate.evidence.estimate
        condition += f", {100 * gate.evidence.confidence:.4g} % confidence"
    elif missing := _missing(gate):
        return Gate(name, condition, None, limit, True, outcome(gate), missing=missing)
    elif gate.champion_value is not None:
        value = sign * (gate.value - gate.champion_value)
    return Gate(name, condition, value, limit, True, outcome(gate), interval, scale=f"{gate.metric} gain")


def _missing(gate: GateResult) -> tuple[str, str] | None:
    """Why no value of a gate is shown; None if it is."""
    if gate.sealed:
        return "sealed set", "Its scores are shown to nobody; only the verdict is told."
    return ("not compared", "It was not asked; the sentence below says why.") if gate.skipped else None


@dataclass(frozen=True)
class Gate:
    """One row of the plot.

    Attributes:
        name, condition: such as `accuracy` and `gain of at least 0`.
        value: what was measured: a value, or a gain; None if nothing is shown.
        limit: what was asked for, in the same unit.
        good_above: whether the gate is met above its limit.
        interval: of the value, if there is one.
        champion: the champion's value, where it lies on the same scale.
        outcome: `met`, `not met`, `insufficient evidence` or `not compared`.
        missing: with no value: what is missing, in two or three words, and why, in a sentence.
        scale: rows with the same text share a scale; "" for none.
    """

    name: str
    condition: str
    value: float | None
    limit: float
    good_above: bool
    outcome: str
    interval: tuple[float, float] | None = None
    champion: float | None = None
    scale: str = ""
    missing: tuple[str, str] = ("no champion yet", "There is nothing to compare with.")


def forest(gates: Sequence[Gate], title: str = "The gates, with what was asked for") -> str:
    """The plot; "" if there are no gates."""
    if not gates:
        return ""
    picture = Picture(_GATES_WIDTH, _GATES_TOP + _GATES_ROW * len(gates), title)
    _gates_legend(picture, gates)
    for number, gate in enumerate(gates):
        top = _GATES_TOP + number * _GATES_ROW
        if number:
            picture.line((0, top, _GATES_WIDTH, top))
        picture.text((0, top + 28), gate.name, size=14, bold=True, room=_GATES_LEFT - 24)
        picture.text((0, top + 47), gate.condition, size=12, fill=SOFT, room=_GATES_LEFT - 24)
        colour = GATE_COLOURS[gate.outcome]
        picture.text(
            (_GATES_RIGHT + 30, top + 28),
            gate.missing[0] if gate.value is None else label(gate.value),
            size=14,
            bold=True,
            room=_GATES_WIDTH - _GATES_RIGHT - 30,
        )
        picture.dot(_GATES_RIGHT + 35, top + 43, 4.5, colour)
        picture.text(
            (_GATES_RIGHT + 46, top + 47), gate.outcome, size=12, fill=colour, room=_GATES_WIDTH - _GATES_RIGHT - 46
        )
        if gate.value is None:
            picture.text((_GATES_LEFT, top + 38), gate.missing[1], size=12, fill=SOFT)
        else:
            alike = [one for one in gates if one is gate or (gate.scale and one.scale == gate.scale)]
            _draw_gate(picture, gate, _gates_scale(alike), top)
    return picture.svg()


def _gates_scale(gates: Sequence[Gate]) -> Scale:
    values = [one for gate in gates for one in (gate.value, gate.limit, gate.champion, *(gate.interval or ()))]
    return scale_of(finite(one for one in values if one is not None), _GATES_LEFT, _GATES_RIGHT, pad=0.16)


def _draw_gate(picture: Picture, gate: Gate, scale: Scale, top: float) -> None:
    """The row's own scale: the good side shaded, the limit dashed, the interval a line, the value a dot."""
    assert gate.value is not None
    middle, colour = top + 25, GATE_COLOURS[gate.outcome]
    picture.rect((_GATES_LEFT, middle - 13, _GATES_RIGHT - _GATES_LEFT, 26), PANEL, radius=4)
    limit = scale.at(gate.limit)
    good = (limit, _GATES_RIGHT) if gate.good_above else (_GATES_LEFT, limit)
    picture.rect((good[0], middle - 13, good[1] - good[0], 26), GOOD, radius=4, more=' fill-opacity="0.16"')
    picture.line((limit, middle - 16, limit, middle + 16), SOFT, 1.5, "4 3")
    if gate.interval is not None:
        low, high = sorted(scale.at(one) for one in gate.interval)
        picture.line((low, middle, high, middle), colour, 2.5)
        for end in (low, high):
            picture.line((end, middle - 5, end, middle + 5), colour, 2)
    if gate.champion is not None:
        x = scale.at(gate.champion)
        picture.area([(x, middle - 6), (x + 6, middle), (x, middle + 6), (x - 6, middle)], BLUE)
    picture.dot(scale.at(gate.value), middle, 6, colour)
    picture.tip((_GATES_LEFT, middle - 16, _GATES_RIGHT - _GATES_LEFT, 32), _gate_in_words(gate))
    _gate_labels(picture, gate, scale, top + 58)


def _gate_labels(picture: Picture, gate: Gate, scale: Scale, y: float) -> None:
    """Labels below the strip: the limit first, then the round values that leave it room."""
    own = label(gate.limit)
    half = width_of(own, 11) / 2
    at = min(max(scale.at(gate.limit), _GATES_LEFT + half), _GATES_RIGHT - half)
    picture.text((at, y), own, size=11, anchor="middle", bold=True)
    taken = [(at - half - 8, at + half + 8)]
    for value, words in scale.ticks(4):
        place, room = scale.at(value), width_of(words, 11) / 2
        span = (place - room, place + room)
        inside = span[0] >= _GATES_LEFT and span[1] <= _GATES_RIGHT
        if inside and all(span[1] < low or span[0] > high for low, high in taken):
            picture.line((place, y - 19, place, y - 15), SOFT)
            picture.text((place, y), words, size=11, anchor="middle", fill=SOFT)
            taken.append((span[0] - 8, span[1] + 8))


def _gates_legend(picture: Picture, gates: Sequence[Gate]) -> None:
    drawn = [gate for gate in gates if gate.value is not None]
    if not drawn:
        return
    x, y = float(_GATES_LEFT), 14
    for shown, words in (
        (True, "candidate"),
        (any(gate.interval for gate in drawn), "confidence interval"),
        (any(gate.champion is not None for gate in drawn), "champion"),
        (True, "limit"),
        (True, "met on this side"),
    ):
        if not shown:
            continue
        if words == "candidate":
            picture.dot(x + 6, y - 4, 5, SOFT)
        elif words == "champion":
            picture.area([(x + 6, y - 10), (x + 12, y - 4), (x + 6, y + 2), (x, y - 4)], BLUE)
        elif words == "limit":
            picture.line((x + 6, y - 11, x + 6, y + 3), SOFT, 1.5, "4 3")
        elif words == "confidence interval":
            picture.line((x, y - 4, x + 13, y - 4), SOFT, 2.5)
        else:
            picture.rect((x, y - 10, 13, 12), GOOD, radius=2, more=' fill-opacity="0.3"')
        picture.text((x + 18, y), words, size=11, fill=SOFT)
        x += 18 + width_of(words, 11) + 16


def _gate_in_words(gate: Gate) -> str:
    assert gate.value is not None
    interval = "" if gate.interval is None else f" ({label(gate.interval[0])} to {label(gate.interval[1])})"
    return f"{gate.name}: {label(gate.value)}{interval}, limit {label(gate.limit)}: {gate.outcome}"
