"""Makes text safe for a terminal, and says which terminal can draw."""

from __future__ import annotations

import os
import re
from typing import TextIO

from data_contracts.quoting import escaped

_LAYOUT = re.compile(r"([\n\t])")
# The colours of a verdict (`lines.text`), which neither hide nor move anything.
_LAYOUT_AND_COLOUR = re.compile(r"([\n\t]|\x1b\[(?:0|3[1-3])m)")
# How a line begins that GitHub takes for a command.
_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)


def printable(text: str, *, colour: bool = False) -> str:
    """Our lines with what a terminal or a CI host would obey written as escapes such as `\\x1b`.

    Args:
        colour: whether the colours of a verdict stay.
    """
    pieces = (_LAYOUT_AND_COLOUR if colour else _LAYOUT).split(text)
    parts = [piece if at % 2 else escaped(piece) for at, piece in enumerate(pieces)]
    return _COMMAND.sub(r"\1\\x3a", "".join(parts))


def draws(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can show more than plain lines."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
