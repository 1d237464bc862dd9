"""What is printed for people: text that is safe for a terminal, and tables.

A table has rules and is as wide as the terminal, or is plain aligned text without a terminal.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Collection, Sequence
from typing import TextIO

from data_contracts.quoting import escaped

_LAYOUT = re.compile(r"([\n\t])")
_VERDICT = re.compile(r"\x1b\[3[1-3]m[a-z_]+\x1b\[0m")
# How a line begins that GitHub takes for a command.
_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
# Wider than any row: for a program or a file nothing is wrapped.
UNBOUNDED = 100_000
GAP = 2


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


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Lines of a table with a head; no rows give "".

    On a narrow terminal the last column is wrapped.

    Args:
        right: columns of figures, by their head; they are aligned to the right.
    """
    if not rows:
        return ""
    # Imported here, because the import is slow and other commands do not need it.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    ruled = draws(sys.stdout)
    cells = [[escaped(cell) for cell in row] for row in rows]
    page = io.StringIO()
    # Without styles: the answer's control characters are escaped.
    console = Console(file=page, color_system=None, width=None if ruled else UNBOUNDED)
    made = Table(box=SIMPLE_HEAD if ruled else None, pad_edge=ruled, padding=(0, GAP, 0, 0))
    for name in head:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name != head[-1])
    for row in cells:
        made.add_row(*map(Text, row))
    console.print(made)
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)
