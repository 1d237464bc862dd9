"""The charts of pages, but for the gates': curves, bars, columns of days, squares of counts, and boxes of a lineage.

What a training logged is drawn as panels of curves: curves of one quantity, such as train_loss and val_loss, share one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.charts.picture import (
    BAD,
    BLUE,
    GOOD,
    GRID,
    PANEL,
    PAPER,
    SERIES,
    SOFT,
    Picture,
    Scale,
    finite,
    fitted,
    label,
    scale_of,
    width_of,
)

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
# More classes cannot be told apart in a picture.
MOST_CLASSES = 12
OTHER = "others"
_SMALL = 10_000
_BOX_WIDTH, _BOX_HEIGHT, _BOX_GAP, _BOX_BELOW = 132, 84, 24, 128


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


def curves(drawn: Sequence[Curve], marks: Sequence[Mark] = (), title: str = "") -> str:
    """A panel of at most six curves; "" if none has a finite value."""
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
    axes(picture, across, up, "step (values on a logarithmic scale)" if wide else "step")
    for mark in marks:
        x = across.at(mark.step)
        picture.line((x, top + 4, x, bottom), SOFT, 1.2, "3 3")
        picture.tip((x - 4, top, 8, bottom - top), f"step {mark.step:g}: {mark.words}")
    for colour, one in zip(SERIES, shown, strict=False):
        points = [(across.at(step), up.at(value)) for step, value in zip(one.steps, one.values, strict=True)]
        if len(points) > 1:
            picture.path(points, colour)
        for point in points if len(points) <= 20 else points[-1:]:
            picture.dot(*point, 2.5, colour)
    _curves_legend(picture, named)
    return picture.svg()


def axes(picture: Picture, across: Scale, up: Scale, below: str) -> None:
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
    axes(picture, across, up, "how sure the model was")
    picture.line((across.start, up.start, across.end, up.end), SOFT, 1.2, "4 3")
    points = [(across.at(sure), up.at(true)) for sure, true, _ in known]
    if len(points) > 1:
        picture.path(points, SERIES[0])
    most = max(rows for _, _, rows in known)
    for (x, y), (sure, true, rows) in zip(points, known, strict=True):
        radius = 3 + 6 * math.sqrt(rows / most)
        picture.dot(x, y, radius, SERIES[0], ' fill-opacity="0.75"')
        picture.tip((x - 9, y - 9, 18, 18), f"sure {sure:.1%}, right {true:.1%}, {rows:,} rows")
    return picture.svg()


def _thinned(curve: Curve) -> Curve:
    """The curve with at most about `_POINTS` points: of each stretch its smallest and its largest value."""
    pairs = zip(curve.steps, curve.values, strict=True)
    kept = [(step, value) for step, value in pairs if len(finite((step, value))) == 2]
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
    axes(picture, across, up, below)
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        x, y = across.at(left), up.at(count)
        picture.rect((x, y, max(across.at(right) - x - 1, 0.8), up.start - y), BLUE, more=' fill-opacity="0.85"')
        picture.tip((x, up.end, across.at(right) - x, up.start - up.end), f"{label(left)} to {label(right)}: {count:,}")
    return picture.svg()


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
        middle = left + wide / 2
        picture.text((middle, up.at(below) - 5), day.figure, size=9, anchor="middle")


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
    classes, codes = _coded(np.concatenate([np.asarray(truth), np.asarray(prediction)]))
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


def _coded(values: NDArray) -> tuple[NDArray, NDArray]:
    """The different values in order, and the place of each value among them; small whole numbers without sorting."""
    if values.dtype.kind in "iu" and len(values) and int(values.max()) - int(values.min()) < _SMALL:
        low = values.min()
        there = np.bincount(values - low) > 0
        return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[values - low]
    classes, codes = np.unique(values, return_inverse=True)
    return classes, codes


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
    axes(picture, across, up, "truth (up: prediction minus truth)")
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
