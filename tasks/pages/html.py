"""HTML in which nothing of a text becomes markup: texts are escaped, and only `Markup` is written as it is.

A page loads nothing and runs nothing: its content security policy, which comes before all else in it, forbids both.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from data_contracts.quoting import one_line
from tasks.pages.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
)


# Tables of so many columns are too wide for a telephone.
LISTED_COLUMNS = 4


class Markup(str):
    """Markup, all texts in which are escaped."""

    __slots__ = ()


NOTHING = Markup("")


def escaped(text: str) -> Markup:
    """A text as markup that shows it; markup stays as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(one_line(text)))


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Parts one after the other."""
    return Markup(escaped(between).join(escaped(part) for part in parts))


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """An element; `kind` is its class, and an attribute that is "" is left out."""
    written = "".join(
        f' {"class" if key == "kind" else key}="{html.escape(one_line(value))}"'
        for key, value in attributes.items()
        if value
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def chart(picture: str, caption: str = "") -> Markup:
    """A picture of `tasks.charts` with a caption; nothing for an empty picture."""
    if not picture:
        return NOTHING
    words = tag("figcaption", caption) if caption else NOTHING
    return tag("figure", words, tag("div", Markup(picture), kind="chart"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> Markup:
    """A table; nothing if it has no rows. On a telephone, each row of a table of many columns becomes a list.

    Args:
        numbers: columns of figures, which are set flush right.
    """
    kinds = ["number" if at in numbers else "" for at in range(len(head))]
    listed = len(head) >= LISTED_COLUMNS
    made = [
        tag("tr", *(_cell(cell, kinds[at], head[at] if listed else "") for at, cell in enumerate(row))) for row in rows
    ]
    if not made:
        return NOTHING
    titles = tag("tr", *(tag("th", one, kind=kinds[at]) for at, one in enumerate(head)))
    return tag("div", tag("table", tag("thead", titles), tag("tbody", *made)), kind="wide listed" if listed else "wide")


def _cell(text: str, kind: str, head: str) -> Markup:
    """A cell of a table; `head` stands before it where rows become lists."""
    return tag("td", text, **{"kind": kind, "data-head": head})


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Names with their values; those without a value are left out."""
    known = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value]
    return tag("dl", *known) if known else NOTHING


def section(title: str, *parts: str) -> Markup:
    """A part of the page under its title; nothing if it is empty."""
    shown = [part for part in parts if part]
    return tag("section", tag("h2", title), *shown) if shown else NOTHING


def page(title: str, *parts: str) -> str:
    """A whole page."""
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" '
    head = f'{HEAD}{view}content="light dark">\n{tag("title", title)}\n<style>{STYLE}</style>\n</head>\n'
    return f"{head}<body>\n{tag('main', join(parts))}\n</body>\n</html>\n"
