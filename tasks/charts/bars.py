"""Bars: by name, as parts of a whole, and as a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.charts.curves import axes
from tasks.charts.picture import BLUE, PANEL, SOFT, Picture, width_of
from tasks.charts.scales import Scale, finite, label

_WIDTH, _ROW, _LEFT = 640, 30, 190


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
    picture = Picture(_WIDTH, _ROW * len(known) + 6, title)
    high = max(max(one.value for one in known), low + 1e-9) if high is None else high
    scale = Scale(low, high, _LEFT, _WIDTH - min(room, 300))
    for number, one in enumerate(known):
        top = 3 + number * _ROW
        end, good = scale.at(one.value), scale.at(one.value - one.wasted)
        picture.text((_LEFT - 12, top + 19), one.name, size=13, anchor="end", room=_LEFT - 14)
        picture.rect((_LEFT, top + 5, scale.end - _LEFT, 19), PANEL, radius=3)
        if one.wasted <= 0 or good - _LEFT >= 0.01:
            more = ' fill-opacity="0.85"'
            picture.rect((_LEFT, top + 5, max(good - _LEFT, 1.5), 19), one.colour, radius=3, more=more)
        if one.wasted > 0:
            more = ' fill-opacity="0.8"'
            picture.rect((good, top + 5, max(end - good, 1.5), 19), "var(--bad,#e0533d)", radius=3, more=more)
        picture.text((scale.end + 8, top + 19), one.figure, size=12, fill=SOFT, room=_WIDTH - scale.end - 8)
        picture.tip((0, top, _WIDTH, _ROW), f"{one.name}: {one.figure}")
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
