"""Makes text safe for a terminal, and says which terminal can draw."""

from __future__ import annotations

import os
import re
from typing import TextIO

# C0 except line ends and tabs, DEL, C1, characters that change the writing direction, and halves of characters. The
# colours of a verdict (`lines.text`) pass: they neither hide nor move anything.
_UNSEEN = re.compile(
    r"(?P<colour>\x1b\[(?:0|3[1-3])m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with terminal control characters written as escapes such as `\\x1b`."""
    return _UNSEEN.sub(lambda found: found["colour"] or found[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """As `printable`, without line ends: a name from a store must not look like a line of ours."""
    return printable(text).replace("\n", " ")


def draws(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can show more than plain lines."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
