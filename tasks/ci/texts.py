"""Texts of a report as one line of visible characters, for hosts that read lines as commands."""

from __future__ import annotations


def plain(text: str, most: int | None = None) -> str:
    """The text on one line, with a blank for what is not visible: control characters, marks that turn the direction.

    Args:
        most: number of characters after which the text is cut.
    """
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"
