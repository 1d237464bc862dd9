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

    On a narrow terminal the last column is wrapped. If its words do not fit either, each row becomes a block of lines.

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
    if _least_width(head, cells) > console.width:
        return "\n\n".join(_block(head, row) for row in cells)
    made = Table(box=SIMPLE_HEAD if ruled else None, pad_edge=ruled, padding=(0, GAP, 0, 0))
    for name in head:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name != head[-1])
    for row in cells:
        made.add_row(*map(Text, row))
    console.print(made)
    lines = [line.rstrip() for line in page.getvalue().splitlines()]
    return "\n".join(line for line in lines if line)


def _least_width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The terminal columns that a ruled table needs if only its last column is wrapped."""
    from rich.cells import cell_len

    *fixed, last = zip(head, *rows, strict=True)
    words = [word for cell in last for word in cell.split()]
    # Each column has one space for the rule beside its gap.
    return sum(max(map(cell_len, column)) + GAP + 1 for column in fixed) + max(map(cell_len, words)) + GAP + 1


def _block(head: Sequence[str], row: Sequence[str]) -> str:
    width = max(map(len, head))
    return "\n".join(f"{name:<{width}}  {cell}" for name, cell in zip(head, row, strict=True) if cell)
