"""A column for each day, of coloured parts, with a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.charts.picture import GRID, SOFT, Picture, width_of
from tasks.charts.scales import Scale, finite

# As wide as a telephone shows without scrolling.
_WIDTH, _LEFT, _RIGHT, _LEGEND, _HIGH, _BELOW = 320, 34, 318, 18, 130, 22


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
    lines = _in_lines(names)
    top = _LEGEND * len(lines) + 18
    picture = Picture(_WIDTH, top + _HIGH + _BELOW, title)
    _legend(picture, lines, colours)
    up = Scale(0, max(sums), top + _HIGH, top)
    whole = all(float(value).is_integer() for day in days for value in day.parts.values())
    ticks = [
        (up.at(value), words.removesuffix(".0"))
        for value, words in up.ticks(3)
        if not whole or float(value).is_integer()
    ]
    left = max(_LEFT, *(width_of(words, 11) + 8 for _, words in ticks))
    for y, words in ticks:
        picture.line((left, y, _RIGHT, y), GRID)
        picture.text((left - 6, y + 4), words, size=11, anchor="end", fill=SOFT)
    wide = (_RIGHT - left) / len(days)
    for number, day in enumerate(days):
        x = left + number * wide
        _column(picture, day, names, colours, up, (x + wide * 0.14, wide * 0.72))
        picture.text((x + wide / 2, top + _HIGH + 16), day.day[-2:], size=11, anchor="middle", fill=SOFT)
        said = ", ".join(f"{name} {day.parts[name]:,.4g}" for name in names if day.parts.get(name, 0) > 0)
        picture.tip((x, top, wide, _HIGH + _BELOW), f"{day.day}: {said or 'nothing'} ({unit})")
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


def _in_lines(names: Sequence[str]) -> list[list[str]]:
    """The legend's names, as many in a line as fit."""
    lines: list[list[str]] = [[]]
    for name in names:
        if lines[-1] and sum(width_of(one, 12) + 30 for one in [*lines[-1], name]) > _RIGHT - _LEFT:
            lines.append([])
        lines[-1].append(name)
    return lines


def _legend(picture: Picture, lines: Sequence[Sequence[str]], colours: Mapping[str, str]) -> None:
    for number, names in enumerate(lines):
        x, y = float(_LEFT), number * _LEGEND + 2
        for name in names:
            picture.rect((x, y, 11, 11), colours[name], radius=2)
            picture.text((x + 16, y + 10), name, size=12, fill=SOFT)
            x += width_of(name, 12) + 30
