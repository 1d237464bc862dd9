"""Curves over the steps of a training, and a chart of what share of a prediction came true (calibration)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.charts.picture import SERIES, SOFT, Picture, fitted, width_of
from tasks.charts.scales import Scale, finite, scale_of

_WIDTH, _HEIGHT = 520, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 508, 30, 214
# Of the legend.
_LINE = 18
# More points than this are no longer seen apart.
_POINTS = 300
_WIDE_RATIO = 50


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
    named = _in_lines([one.name for one in shown])
    more = _LINE * (len(named) - 1)
    top, bottom = _TOP + more, _BOTTOM + more
    words = title or f"{', '.join(one.name for one in shown)} over the steps of the training"
    picture = Picture(_WIDTH, _HEIGHT + more, words)
    wide = min(values) > 0 and max(values) / min(values) > _WIDE_RATIO
    across = scale_of([*steps, *(one.step for one in marks)], _LEFT, _RIGHT, pad=0.02)
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
    _legend(picture, named)
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


def _in_lines(names: Sequence[str]) -> list[list[str]]:
    """The names of a legend, as many in a line as there is room for; one that is longer than a line is cut off."""
    lines: list[list[str]] = []
    left = 0.0
    for name in names:
        shown = fitted(name, 12, _WIDTH - _LEFT - 26)
        needed = 33 + width_of(shown, 12)
        if needed > left:
            lines.append([])
            left = float(_WIDTH - _LEFT)
        lines[-1].append(shown)
        left -= needed
    return lines


def _legend(picture: Picture, lines: Sequence[Sequence[str]]) -> None:
    """The names at the top, each beside its colour."""
    colours = iter(SERIES)
    for number, names in enumerate(lines):
        x, y = float(_LEFT), 12 + _LINE * number
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
