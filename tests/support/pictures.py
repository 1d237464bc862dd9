"""What must hold for every picture: it is XML, every number is finite and inside the canvas, every text is a text.

And for every page: nothing in it may load or run anything (`Elements`).
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

_NUMBER = re.compile(r"-?[0-9.]+")
HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> \x00\x1b[31m \ud800 ‮ ￾" + "W" * 80


def texts_of(picture: str) -> list[str]:
    """The texts of a picture that holds what it must, without its tooltips."""
    root = ElementTree.fromstring(picture)
    _, _, wide, high = map(float, root.attrib["viewBox"].split())
    assert wide > 0
    assert high > 0
    assert "nan" not in picture.lower().replace("finance", "")
    shapes = 0
    for element in root.iter():
        name = element.tag.removeprefix("{http://www.w3.org/2000/svg}")
        assert name in {"svg", "title", "rect", "line", "path", "polygon", "circle", "text"}, name
        assert not [key for key in element.attrib if key.startswith("on") or "href" in key]
        shapes += name in {"rect", "line", "path", "polygon", "circle"}
        for x, y in _places(name, element.attrib):
            assert -1 <= x <= wide + 1, (name, element.attrib)
            assert -1 <= y <= high + 1, (name, element.attrib)
    assert shapes, "an empty picture"
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def _places(name: str, of: dict[str, str]) -> list[tuple[float, float]]:
    if name == "rect":
        x, y, wide, high = (float(of[key]) for key in ("x", "y", "width", "height"))
        return [(x, y), (x + wide, y + high)]
    if name == "line":
        return [(float(of["x1"]), float(of["y1"])), (float(of["x2"]), float(of["y2"]))]
    if name == "circle":
        return [(float(of["cx"]), float(of["cy"]))]
    if name == "text":
        return [(float(of["x"]), float(of["y"]))]
    if name in ("path", "polygon"):
        numbers = [float(one) for one in _NUMBER.findall(of.get("d") or of["points"])]
        return list(zip(numbers[::2], numbers[1::2], strict=True))
    return []


class Elements(HTMLParser):
    """The elements of a page, and its texts."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def elements_of(page: str) -> Elements:
    """The elements and texts of a page."""
    elements = Elements()
    elements.feed(page)
    return elements
