"""Shows values of data and foreign exceptions in our sentences: escaped, bounded, and withheld where they must be.

With sensitive columns, rows are handled in child processes whose output goes to a withheld log: a file on that machine,
readable by its owner alone (`infra.processes.environment` makes it, LOG names it to the child). There the text of an
exception of the user's code or of a library may hold a value, so a sentence has its type, file and line, and the log
has the whole text. Without LOG nothing is withheld.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import sys
import traceback
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

# The file that holds the texts of a process that handles rows with sensitive columns; "" if it handles none.
LOG = "TRAINWRIGHT_WITHHELD"
# Root of the user's unpacked code, in a process that runs it.
PROJECT = "TRAINWRIGHT_PROJECT"
# Credentials that may be sent to addresses: names alone, as `infra.settings` says.
APPROVED = "TRAINWRIGHT_APPROVED"
MASK = "•••"
_BECAUSE = "{} withheld because data.sensitive is set"


# C0, DEL, C1, blanks that are no U+0020, marks without width (U+200D joins emoji, too), fillers, what XML cannot hold;
# and what makes a CI host carry out a line from anywhere in it: `##[set-output …]`, `##vso[…]`, `##teamcity[…]`.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u180e\u2000-\u200c\u200e\u200f\u2028-\u202f\u205f-\u206f"
    r"\u2800\u3000\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
    r"|(?<=\w)\u200d|\u200d(?=\w)|#(?=#(?:vso|teamcity)?\[)"
)
# Letters that look like Latin ones: Cyrillic, then Greek.
_ALIKE: dict[str, str] = dict(
    zip("асеорхуіјѕһԁԛԝАВЕКМНОРСТХУІЈЅοΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "aceopxyijshdqwABEKMHOPCTXYIJSoABEZHIKMNOPTYX", strict=True)
)
_MIXED = re.compile(rf"(?<=[A-Za-z])[{''.join(_ALIKE)}]|[{''.join(_ALIKE)}](?=[{''.join(_ALIKE)}]*[A-Za-z])")
# The longest value, and the longest text of an exception, in a sentence.
MOST_VALUE, MOST_TEXT = 200, 4_000
_DECIMAL_DIGITS = 80


def escaped(text: str, most: int | None = None) -> str:
    """A foreign text on one line, with escapes such as `\\n` for what a terminal or a CI host would obey, and such as
    `\\xa0` for what nobody sees: blanks that are not plain ones, marks without width, an accent that is a character of
    its own, and letters of other scripts that look like Latin ones in a Latin word.

    Args:
        most: number of characters after which it is cut.
    """
    shown = text if most is None else text[: most + 1]
    if not shown.isascii():
        shown = _MIXED.sub(lambda alike: _escape(alike[0]), shown)
        if unicodedata.normalize("NFC", shown) != shown:  # one character is written as two
            shown = "".join(_escape(one) if unicodedata.combining(one) else one for one in shown)
    shown = _UNSEEN.sub(lambda unseen: _escape(unseen[0]), shown)
    return shown if most is None or len(shown) <= most else f"{shown[: most - 1]}…"


def one_line(text: str, most: int | None = None) -> str:
    """As `escaped`, with a blank for each run of blanks and line ends."""
    return escaped(re.sub(r"[ \t\r\n\f\v]+", " ", text).strip(" "), most)


def as_sentence(text: str) -> str:
    """The text with a full stop, unless it already ends as a sentence does."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _escape(character: str) -> str:
    return "\\u0023" if character == "#" else character.encode("unicode_escape").decode()


def withholds() -> bool:
    """Whether this process handles rows with sensitive columns."""
    return bool(os.environ.get(LOG))


def log_place(log: str | Path) -> str:
    """A withheld log's name in a sentence: path and host."""
    return f"{log} on {socket.gethostname()}"


def shown(value: Any) -> str:
    """A value of a possibly sensitive column, for a sentence: a text in quotation marks, a number without."""
    return MASK if withholds() else escaped(repr(_plain(value)), MOST_VALUE)


def value_shown(value: Any) -> str:
    """A value of data; a text has quotation marks if it could be taken for something else: '1', 'None', ' a'."""
    value = _plain(value)
    if value is None or str(value) in ("<NA>", "NaT", "nan", "NaN"):
        return "null" if not isinstance(value, str) else repr(value)
    if isinstance(value, Decimal):
        # Not as 0E-10; and more digits than any column has are those of a mean without an end.
        return f"{value:f}" if len(value.as_tuple().digits) <= _DECIMAL_DIGITS else str(float(value))
    if isinstance(value, list | tuple):
        return escaped(f"[{', '.join(map(value_shown, value[:MOST_VALUE]))}]", MOST_VALUE)
    return escaped(repr(value) if isinstance(value, str) and _misleads(value) else str(value), MOST_VALUE)


def name_shown(name: str, beside: str = "") -> str:
    """The name of a column, in quotation marks where a blank at an end, or another mark in it, would not be seen.

    Args:
        beside: another name in the sentence; letters that make the two look alike are shown as escapes.
    """
    if name != beside and _looks(name) == _looks(beside):
        return escaped(ascii(name), MOST_VALUE)
    unclear = not name or name != name.strip() or escaped(name) != name or re.search(r"[,;:'\"]|  ", name)
    return escaped(repr(name) if unclear else name, MOST_VALUE)


def absent_shown(name: str, there: Collection[str]) -> str:
    """`'label '; it has label`: the name of a column that does not exist, and those that do."""
    return f"{absent_name(name, there)}; it has {columns_shown(there, beside=name)}"


def absent_name(name: str, there: Collection[str]) -> str:
    """The name of a column that does not exist, in quotation marks; letters that make it look like another as escapes.

    Args:
        there: the columns that exist.
    """
    near = "" if withholds() else nearest_name(name, there) or ""
    shown_name = name_shown(name, near)
    return repr(name) if shown_name == name else shown_name


def nearest_name(name: str, names: Collection[str]) -> str | None:
    """The existing name that an absent one was probably meant to be; None if no name is near."""
    looks: dict[str, str] = {}
    for one in names:
        looks.setdefault(_looks(one), one)
    close = [looks[_looks(name)]] if _looks(name) in looks else difflib.get_close_matches(name, names, 1)
    return close[0] if close else None


def _looks(name: str) -> str:
    """What a name looks like: without the difference of letters that look alike, of case, and of blanks."""
    folded = unicodedata.normalize("NFKC", _UNSEEN.sub("", name)).translate(
        {ord(letter): latin for letter, latin in _ALIKE.items()}
    )
    return "".join(folded.split()).casefold()


def _plain(value: Any) -> Any:
    """A value of NumPy's or Arrow's as one of Python's."""
    for turn in ("tolist", "as_py"):
        if hasattr(value, turn):
            return getattr(value, turn)()
    return value


def _misleads(text: str) -> bool:
    """Whether a text looks like a number, a truth value, a time or nothing, or has a blank at an end."""
    literal = re.fullmatch(r"(?i)[+-]?(\d[\d._,]*(e[+-]?\d+)?|inf|nan)|none|null|nat|na|<na>|true|false", text)
    return not text or text != text.strip() or literal is not None


def columns_shown(names: Collection[str], sensitive: bool = False, beside: str = "") -> str:
    """The existing columns, for a sentence. In a file without a header, the first row's values are the names.

    Args:
        sensitive: whether the columns may be sensitive, for a process that sees no rows itself.
        beside: the name that was looked for.
    """
    if sensitive or withholds():
        count = f"{len(names)} column{'s' if len(names) != 1 else ''}"
        return f"{count}, whose names {_BECAUSE.format('are')}"
    return escaped(", ".join(name_shown(name, beside) for name in names), MOST_TEXT)


def column_shown(text: str, at: int | None = None) -> str:
    """A column that no spec or suite may name, for a sentence: `text`, or its number; `at` counts from 0."""
    if not withholds():
        return escaped(text, MOST_VALUE)
    return f"{'' if at is None else f'{at + 1} '}(its name {_BECAUSE.format('is')})"


def type_shown(kind: Any, *, sensitive: bool = False) -> str:
    """An Arrow type of a column; where names are withheld, or if the column is sensitive, without those in objects.

    The keys of an object in JSON are names in its type, and may be values, such as e-mail addresses.
    """
    before, found, _ = str(kind).partition("struct<")
    if found and (sensitive or withholds()):
        return f"{before}{found}{MASK}{'>' * (before.count('<') + 1)}"
    return str(kind)


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
