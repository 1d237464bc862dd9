"""Makes text safe for a terminal, and says which terminal can draw."""

from __future__ import annotations

import os
import re
from typing import TextIO

from data_contracts.quoting import escaped

_LAYOUT = re.compile(r"([\n\t])")
_VERDICT = re.compile(r"\x1b\[3[1-3]m[a-z_]+\x1b\[0m")
# How a line begins that GitHub takes for a command.
_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)


def printable(text: str, *, coloured: bool = False) -> str:
    """Our lines with what a terminal or a CI host would obey written as escapes such as `\\x1b`.

    Args:
        coloured: whether the text may begin with a verdict in a colour, the only one that an answer has.
    """
    verdict = _VERDICT.match(text) if coloured else None
    begin = "" if verdict is None else verdict[0]
    pieces = [piece if at % 2 else escaped(piece) for at, piece in enumerate(_LAYOUT.split(text.removeprefix(begin)))]
    return begin + _COMMAND.sub(r"\1\\x3a", "".join(pieces))


def draws(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can show more than plain lines."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
