"""Histograms then and now, as bars and as a small SVG picture that needs no script, font or file."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from data_contracts.drift_report import Bar
from data_contracts.profile.bins import value_of
from data_contracts.profile.measures import Counts

MOST = 20
_WIDTH, _HEIGHT, _GAP = 240, 60, 1
_THEN, _NOW = "#9aa5b1", "#d9480f"


def bars_of_values(pairs: Sequence[tuple[str, int, int]], sizes: tuple[int, int]) -> list[Bar]:
    """Bars of the values that are most frequent then and now together."""
    ranked = sorted(pairs, key=lambda one: (-one[1] / sizes[0] - one[2] / sizes[1], one[0]))[:MOST]
    return [Bar(label=name[:40], then=one / sizes[0], now=two / sizes[1]) for name, one, two in ranked]


def bars_of_bins(keys: Sequence[int], shift: int, counts: Counts) -> list[Bar]:
    """Bars of equal width over the middle 98 % of the values then and now together."""
    total, below = sum(counts.sizes), 0
    inner = []
    for key, one, two in zip(keys, *counts, strict=True):
        middle = value_of((key << shift) + ((1 << shift) >> 1))
        if 0.01 * total <= below + one + two and below <= 0.99 * total and math.isfinite(middle):
            inner.append((middle, one, two))
        below += one + two
    if not inner:
        return []
    low, high = inner[0][0], inner[-1][0]
    number = min(MOST, len(inner))
    width = (high - low) / number if math.isfinite(high - low) and high > low else 0.0
    cells = [[0, 0] for _ in range(number)]
    for middle, one, two in inner:
        at = min(int((middle - low) / width), number - 1) if width else 0
        cells[at][0] += one
        cells[at][1] += two
    sizes = counts.sizes
    return [
        Bar(label=f"{low + at * width:.4g}", then=one / sizes[0], now=two / sizes[1])
        for at, (one, two) in enumerate(cells)
    ]


def svg(bars: Sequence[Bar], title: str) -> str:
    """A picture of bars: then in grey, now in orange before it."""
    highest = max((max(bar.then, bar.now) for bar in bars), default=0.0) or 1.0
    step = _WIDTH / max(len(bars), 1)
    drawn = []
    for at, bar in enumerate(bars):
        for share, colour, left, width in ((bar.then, _THEN, 0.0, 1.0), (bar.now, _NOW, 0.25, 0.5)):
            height = _HEIGHT * share / highest
            x, wide = at * step + left * step, max(width * step - _GAP, 0.5)
            place = f'x="{x:.1f}" y="{_HEIGHT - height:.1f}" width="{wide:.1f}" height="{height:.1f}"'
            drawn.append(f'<rect {place} fill="{colour}"/>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
    )
    return f"{head}<title>{escape(title)}</title>{''.join(drawn)}</svg>"


def as_image(picture: str) -> str:
    """Markdown of a picture; the text is base64, so nothing of it can be read as Markdown."""
    return f"![histogram](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})"
