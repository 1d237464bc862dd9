"""Renders the templates of pages. Nothing of a text becomes markup: only charts and parts of pages are `Markup`.

A page loads nothing and runs nothing: its content security policy, which comes before all else in it, forbids both. It
looks light or dark, and fits a screen, a telephone and paper. No font and no picture is loaded.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from data_contracts.quoting import one_line

_FOLDER = Path(__file__).parent / "templates"


def _on_one_line(value: object) -> str:
    """A value as a page shows it; Jinja escapes it after this."""
    return value if isinstance(value, Markup) else one_line(str(value))


_TEMPLATES = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_on_one_line,
    trim_blocks=True,
    lstrip_blocks=True,
)
# What every page begins with.
HEAD = (_FOLDER / "page.html.j2").read_text().partition("<title>")[0]


def page(template: str, **values: object) -> str:
    """A whole page."""
    return _TEMPLATES.get_template(f"{template}.html.j2").render(values)


def part(template: str, macro: str, **values: object) -> Markup:
    """What a macro of a template makes."""
    return getattr(_TEMPLATES.get_template(f"{template}.html.j2").module, macro)(**values)


def note(title: str, words: str) -> Markup:
    """A section with one sentence; nothing without one."""
    return part("pieces", "note", title=title, words=words)


def badge(words: str, tone: str = "") -> Markup:
    """A word in a frame of its tone: `good`, `warn`, `bad` or `calm`."""
    return part("pieces", "badge", words=words, tone=tone)


def code(words: str) -> Markup:
    """A text that is set as code."""
    return part("pieces", "code", words=words)
