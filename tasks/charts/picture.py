"""A picture: shapes and texts on a canvas, written as one `<svg>`. Every text is escaped, every number is finite."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from data_contracts.quoting import one_line

TEXT = "var(--ink,#6f7c8b)"
SOFT = "var(--soft,#8793a1)"
GRID = "var(--grid,#9aa7b566)"
PANEL = "var(--panel,#9aa7b51f)"
PAPER = "var(--paper,#ffffff00)"
GOOD = "var(--good,#2f9e60)"
BAD = "var(--bad,#e0533d)"
WARN = "var(--warn,#b87612)"
BLUE = "var(--blue,#3f83e0)"
SERIES = (BLUE, "var(--orange,#df7b32)", "var(--violet,#9a6ddb)", GOOD, "var(--pink,#d6568f)", "var(--teal,#1f9aa5)")
_FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
_NARROW, _WIDE = set("fijlrt.,:;'|!()[] "), set("mwMW@%")


def width_of(text: str, size: float) -> float:
    """About how wide a text is drawn, in the picture's units; rather too wide than too narrow."""
    return size * sum(_share(one) for one in text)


def _share(one: str) -> float:
    if one in _NARROW:
        return 0.38
    if one in _WIDE:
        return 0.98
    if ord(one) > 0x2E7F:  # such as Chinese
        return 1.05
    return 0.72 if one.isupper() else 0.64


def fitted(text: str, size: float, room: float) -> str:
    """The text, cut off with an ellipsis where it is wider than the room."""
    text = one_line(text)
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def number(value: float) -> str:
    """A coordinate; ValueError for a number that is not finite."""
    if not math.isfinite(value):
        raise ValueError("a coordinate that is not finite")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@dataclass
class Picture:
    """A canvas from (0, 0) to (width, height); `title` says in one sentence what there is to see."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def rect(self, box: tuple[float, float, float, float], fill: str, *, radius: float = 0, more: str = "") -> None:
        """A rectangle: left, top, width, height."""
        x, y, wide, high = map(number, (box[0], box[1], max(box[2], 0), max(box[3], 0)))
        rounded = f' rx="{number(radius)}"' if radius else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}"{rounded} fill="{fill}"{more}/>')

    def line(
        self, ends: tuple[float, float, float, float], stroke: str = GRID, width: float = 1, dash: str = ""
    ) -> None:
        """A line from (x1, y1) to (x2, y2)."""
        x1, y1, x2, y2 = map(number, ends)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        place = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        self.parts.append(f'<line {place} stroke="{stroke}" stroke-width="{number(width)}"{dashed}/>')

    def path(self, points: list[tuple[float, float]], stroke: str, width: float = 1.75, more: str = "") -> None:
        """A line through points."""
        drawn = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.parts.append(
            f'<path d="{drawn}" fill="none" stroke="{stroke}" stroke-width="{number(width)}" '
            f'stroke-linejoin="round" stroke-linecap="round"{more}/>'
        )

    def area(self, points: list[tuple[float, float]], fill: str, more: str = "") -> None:
        """A filled shape with these corners."""
        drawn = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.parts.append(f'<polygon points="{drawn}" fill="{fill}"{more}/>')

    def dot(self, x: float, y: float, radius: float, fill: str, more: str = "") -> None:
        """A filled circle."""
        self.parts.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" fill="{fill}"{more}/>')

    def text(
        self,
        at: tuple[float, float],
        words: str,
        *,
        size: float = 12,
        anchor: str = "start",
        fill: str = TEXT,
        room: float = math.inf,
        bold: bool = False,
    ) -> None:
        """A text at its base line; cut off to its room, the whole text then stands in its tooltip."""
        shown = fitted(words, size * (1.06 if bold else 1), room)
        if not shown:
            return
        tip = f"<title>{escape(one_line(words))}</title>" if shown != one_line(words) else ""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{number(at[0])}" y="{number(at[1])}" font-size="{number(size)}" text-anchor="{anchor}" '
            f'fill="{fill}"{weight}>{escape(shown)}{tip}</text>'
        )

    def tip(self, box: tuple[float, float, float, float], words: str) -> None:
        """An invisible rectangle with a tooltip."""
        x, y, wide, high = map(number, box)
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="none" pointer-events="all">'
            f"<title>{escape(one_line(words))}</title></rect>"
        )

    def svg(self) -> str:
        """The whole picture."""
        wide, high = number(self.width), number(self.height)
        # Double quotes in an attribute are the one thing that `escape` leaves.
        label = escape(one_line(self.title), {'"': "&quot;"})
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            f'role="img" aria-label="{label}" font-family="{_FONT}"><title>{escape(one_line(self.title))}</title>'
            f"{''.join(self.parts)}</svg>"
        )


def as_image(picture: str, name: str) -> str:
    """Markdown of a picture as a data URI; its text is base64, so nothing of it can be read as Markdown.

    Args:
        name: a word of ours that stands for it where pictures are not shown.
    """
    return f"![{name}](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})"
