"""What every chart is drawn with: a picture, and scales from values to places with round numbers as ticks.

A picture is shapes and texts on a canvas, written as one `<svg>`. Every text is escaped, every number is finite.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from markupsafe import Markup

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
# Values beyond this are no measurement, and their differences overflow.
_MOST = 1e300


def width_of(text: str, size: float) -> float:
    """About how wide a text is drawn, in the picture's units; rather too wide than too narrow."""
    return size * sum(_share(letter) for letter in text)


def _share(letter: str) -> float:
    if letter in _NARROW:
        return 0.38
    if letter in _WIDE:
        return 0.98
    if ord(letter) > 0x2E7F:  # such as Chinese
        return 1.05
    return 0.72 if letter.isupper() else 0.64


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

    def svg(self) -> Markup:
        """The whole picture, in which every text is escaped."""
        wide, high = number(self.width), number(self.height)
        # Double quotes in an attribute are the one thing that `escape` leaves.
        label = escape(one_line(self.title), {'"': "&quot;"})
        return Markup(
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


def finite(values: Iterable[float]) -> list[float]:
    """The values that a chart can place."""
    return [float(value) for value in values if math.isfinite(value) and abs(value) < _MOST]


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` at places from `start` to `end`; `log` if equal ratios have equal distances."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; of a value beyond the scale, its nearer end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round values inside the scale with their labels."""
        return _powers(self, most) if self.log else _round_values(self.low, self.high, most)


def scale_of(values: Sequence[float], start: float, end: float, *, pad: float = 0.06, log: bool = False) -> Scale:
    """A scale that holds all values, with some room beyond them; `log` counts only for positive values."""
    known = finite(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if log and low > 0 and high / low > 1.001:
        ratio = (high / low) ** pad
        return Scale(low / ratio, high * ratio, start, end, log=True)
    room = (high - low) * pad or abs(high) * 0.1 or 0.5
    return Scale(low - room, high + room, start, end)


def label(value: float, step: float | None = None) -> str:
    """A number for a person: with as many digits as steps of this size need, else four."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if step is None:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    digits = max(0, min(10, -math.floor(math.log10(abs(step)) + 1e-9)))
    return f"{value:,.{digits}f}"


def _round_values(low: float, high: float, most: int) -> list[tuple[float, str]]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    shown = step if step / power != 2.5 else power / 10 * 5  # 2.5 needs one digit more
    return [(number * step, label(number * step, shown)) for number in range(first, min(last, first + 50) + 1)]


def _powers(scale: Scale, most: int) -> list[tuple[float, str]]:
    first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    if last - first < 1:
        return _round_values(scale.low, scale.high, most)
    step = max(1, math.ceil((last - first + 1) / most))
    return [(10.0**power, label(10.0**power)) for power in range(first, last + 1, step)]
