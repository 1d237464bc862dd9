"""Shows values of data and foreign exceptions in our sentences: escaped, bounded, and withheld where they must be.

With sensitive columns, rows are handled in child processes whose output goes to a withheld log: a file on that machine,
readable by its owner alone (`infra.processes.private_texts` makes it, LOG names it to the child). There the text of an
exception of the user's code or of a library may hold a value, so a sentence has its type, file and line, and the log
has the whole text. Without LOG nothing is withheld.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

# The file that holds the texts of a process that handles rows with sensitive columns; "" if it handles none.
LOG = "TRAINWRIGHT_WITHHELD"
# Root of the user's unpacked code, in a process that runs it.
PROJECT = "TRAINWRIGHT_PROJECT"
# Credentials that may be sent to addresses: names alone, as `infra.machine.approved_credentials` says.
APPROVED = "TRAINWRIGHT_APPROVED"
MASK = "•••"
_BECAUSE = "{} withheld because data.sensitive is set"


# C0, DEL, C1, line separators, marks that change the writing direction, what XML cannot hold; and what makes a CI host
# carry out a line from anywhere in it: `##[set-output …]`, `##vso[…]`, `##teamcity[…]`.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]|#(?=#(?:vso|teamcity)?\[)"
)
# The longest value, and the longest text of an exception, in a sentence.
MOST_VALUE, MOST_TEXT = 200, 4_000


def escaped(text: str, most: int | None = None) -> str:
    """A foreign text on one line, with escapes such as `\\n` and `\\x1b` for what a terminal or a CI host would obey.

    Args:
        most: number of characters after which it is cut.
    """
    shown = _UNSEEN.sub(lambda unseen: _escape(unseen[0]), text if most is None else text[: most + 1])
    return shown if most is None or len(shown) <= most else f"{shown[: most - 1]}…"


def one_line(text: str, most: int | None = None) -> str:
    """As `escaped`, with a blank for each run of blanks and line ends."""
    return escaped(" ".join(text.split()), most)


def _escape(character: str) -> str:
    return "\\u0023" if character == "#" else character.encode("unicode_escape").decode()


def withholds() -> bool:
    """Whether this process handles rows with sensitive columns."""
    return bool(os.environ.get(LOG))


def log_place(log: str | Path) -> str:
    """A withheld log's name in a sentence: path and host."""
    return f"{log} on {socket.gethostname()}"


def shown(value: Any) -> str:
    """A value of a possibly sensitive column, for a sentence."""
    return MASK if withholds() else escaped(repr(value), MOST_VALUE)


def columns_shown(names: Collection[str], sensitive: bool = False) -> str:
    """The existing columns, for a sentence. In a file without a header, the first row's values are the names.

    Args:
        sensitive: whether the columns may be sensitive, for a process that sees no rows itself.
    """
    if sensitive or withholds():
        count = f"{len(names)} column{'s' if len(names) != 1 else ''}"
        return f"{count}, whose names {_BECAUSE.format('are')}"
    return escaped(", ".join(names), MOST_TEXT)


def column_shown(text: str, at: int | None = None) -> str:
    """A column that no spec or suite may name, for a sentence: `text`, or its number; `at` counts from 0."""
    if not withholds():
        return escaped(text, MOST_VALUE)
    return f"{'' if at is None else f'{at + 1} '}(its name {_BECAUSE.format('is')})"


def rows_shown(places: Sequence[tuple[str, int, int]], *, whole_files: bool = False) -> str:
    """Rows in words.

    Args:
        places: in order: a file, and the first and the last of its rows, counted from 0.
        whole_files: whether a row is a file.
    """
    (name, first, _), (last_name, _, last) = places[0], places[-1]
    if whole_files:
        return name if name == last_name else f"{name} to {last_name} ({len(places):,} files)"
    if name != last_name:
        return f"row {first:,} of {name} to row {last:,} of {last_name}"
    return f"row {first:,} of {name}" if first == last else f"rows {first:,} to {last:,} of {name}"


def withhold(text: str, instead: str) -> str:
    """`text`; where texts are withheld, it goes to the log, and the result is `instead` with the log's place."""
    if not withholds():
        return text
    print(text, file=sys.stderr, flush=True)
    return f"{instead}; its text is in {log_place(os.environ[LOG])}"


def text_of(error: BaseException) -> str:
    """The message of an exception."""
    return _quoted(error, str(error))


def type_and_text(error: BaseException) -> str:
    """`Type: message`."""
    return _quoted(error, f"{type(error).__name__}: {error}")


def describe(error: BaseException, project: Path | None = None) -> str:
    """`Type: first line of the message`, without a final full stop.

    Args:
        project: root of the user's code, whose file and line are named where the text is withheld.
    """
    lines = str(error).strip().splitlines()
    return _quoted(
        error, (f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__).rstrip("."), project
    )


def format_links(whole: traceback.TracebackException) -> str:
    """A traceback as text, chained exceptions included; where texts are withheld, types, files and lines alone."""
    if not withholds():
        return "".join(whole.format()).rstrip()
    lines = []
    for link in reversed(list(links(whole))):
        lines += ["Traceback (most recent call last):"] if link.stack else []
        lines += [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}' for frame in link.stack]
        lines.append(_type_name(link))
    return "\n".join(lines)


def links(whole: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, and the exceptions that it is chained to or groups."""
    waiting: list[traceback.TracebackException | None] = [whole]
    while waiting:
        link = waiting.pop()
        if link is not None:
            yield link
            waiting += [link.__cause__, link.__context__, *(link.exceptions or [])]


def _quoted(error: BaseException, text: str, project: Path | None = None) -> str:
    if not withholds():
        return one_line(text, MOST_TEXT)
    whole = "".join(traceback.format_exception(error)).rstrip()
    return withhold(whole, f"{type(error).__name__}{_place(error, project)}")


def _place(error: BaseException, project: Path | None) -> str:
    """File and line of the user's code if the traceback has a frame there, else of the code that raised."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    root = project or Path(os.environ.get(PROJECT) or os.devnull)
    own = [(path.relative_to(root), line) for path, line in frames if path.is_relative_to(root)]
    others = [(Path(*path.parts[-2:]), line) for path, line in frames]
    return "".join(f" at {path}:{line}" for path, line in (own or others)[-1:])


def _type_name(link: traceback.TracebackException) -> str:
    kind = getattr(link, "exc_type_str", None) or getattr(link.exc_type, "__qualname__", "")
    return str(kind).rpartition(".")[2]
