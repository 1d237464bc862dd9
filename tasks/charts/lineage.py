"""A picture of where a model comes from: boxes from the raw files to the version, with what entered beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.charts.picture import BLUE, PANEL, PAPER, SOFT, Picture

_BOX, _HIGH, _GAP, _BELOW = 132, 84, 24, 128


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
    high = _HIGH + 4 + (_BELOW if any(box.from_below for box in boxes) else 0)
    picture = Picture(len(boxes) * (_BOX + _GAP) - _GAP + 4, high, "Where the model comes from")
    for number, box in enumerate(boxes):
        left = 2 + number * (_BOX + _GAP)
        _draw(picture, left, 2, (box.kind, box.what, box.id), box)
        if number:
            there = box.reached and boxes[number - 1].reached
            _arrow(picture, (left - _GAP + 3, 2 + _HIGH / 2), (left - 3, 2 + _HIGH / 2), faint=not there)
        if box.from_below:
            _draw(picture, left, 2 + _BELOW, box.from_below, Box("", ""))
            middle = left + _BOX / 2
            _arrow(picture, (middle, _BELOW - 2), (middle, _HIGH + 6), faint=False)
    return picture.svg()


def _draw(picture: Picture, left: float, top: float, words: tuple[str, str, str], box: Box) -> None:
    dash = "" if box.reached and not box.reused else ' stroke-dasharray="5 4"'
    stroke = BLUE if box.reached else SOFT
    picture.rect((left, top, _BOX, _HIGH), PAPER, radius=8)
    more = f' stroke="{stroke}" stroke-width="1.5"{dash}' + ("" if box.reached else ' stroke-opacity="0.6"')
    picture.rect((left, top, _BOX, _HIGH), PANEL, radius=8, more=more)
    kind, what, identity = words
    picture.text((left + 12, top + 24), kind, size=13, bold=True, room=_BOX - 24)
    picture.text((left + 12, top + 46), what if box.reached else "not reached", size=12, room=_BOX - 24)
    picture.text((left + 12, top + 67), identity, size=11, fill=SOFT, room=_BOX - 24)


def _arrow(picture: Picture, start: tuple[float, float], end: tuple[float, float], *, faint: bool) -> None:
    picture.line((*start, *end), SOFT, 1.5, "3 3" if faint else "")
    (x, y), across = end, start[1] == end[1]
    corners = [(x, y), (x - 6, y - 4), (x - 6, y + 4)] if across else [(x, y), (x - 4, y + 6), (x + 4, y + 6)]
    picture.area(corners, SOFT)
