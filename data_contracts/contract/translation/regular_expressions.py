r"""Writes a regular expression of Python's for RE2, DuckDB's engine, where both find a match in the same texts.

Python's own parser reads it, and each part is written anew, so that it does not matter how the two read a text. These
parts mean a set of texts, the same by definition: literals, sets and ranges of code points, any character but a line
break, alternatives, groups, repetitions. Which match is found, and what a group holds, does not count here. Of the
others,

- `\d`, `\s`, `\w` and their opposites are the code points that Python counts to them, because RE2's are of ASCII alone;
- flags, references, look-around, possessive and atomic groups, word boundaries: not written;
- `^` and `\A` are the beginning of the text, since no flag is set; `\Z` is its end;
- `$` is the end, or before a line break at the end: written as `\n?\z`, which is the same only if nothing follows it;
- a repetition of what may be empty, or holds one of these ends, is left to Python, which stops it by rules of its own.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.contract.measures import Question
from data_contracts.contract.translation.questions import Arguments, Kind, is_text, of_rows

_PARSER: Any = importlib.import_module("re._parser")
_LONGEST = 500
_MOST = 1000  # repetitions, which RE2 writes out one after the other
_SURROGATES = range(0xD800, 0xE000)
_CLASSES = {
    "CATEGORY_DIGIT": r"\d", "CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip
_ENDS = {"AT_BEGINNING": r"\A", "AT_BEGINNING_STRING": r"\A", "AT_END_STRING": r"\z"}


class _Other(Exception):
    """A part that may mean something else to RE2."""


@cache
def for_re2(regex: str) -> str | None:
    """The regular expression for RE2, of ASCII without quotes; None if it may not mean the same."""
    if len(regex) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as a set that will mean something else in a later Python
            parsed = _PARSER.parse(regex)
        if parsed.state.flags != re.UNICODE.value:
            return None
        written = _sequence(parsed, tail=True, inside=False, times=1)
        pc.match_substring_regex(pa.array([""]), written)  # raises if its repetitions are too many for RE2
        return written
    except (_Other, re.error, OverflowError, RecursionError, Warning, pa.ArrowInvalid):
        return None


def is_for_re2(regex: Any) -> bool:
    """Whether a regular expression can be written for RE2."""
    return is_text(regex) and for_re2(regex) is not None


def matching(*, wanted: bool) -> Callable[[Arguments, Kind], Question]:
    """The question whether texts match a regular expression, or one or all of a list; or match none."""

    def build(kwargs: Arguments, kind: Kind) -> Question:
        listed = kwargs["regex_list"] if "regex_list" in kwargs else [kwargs["regex"]]
        # Not bound: DuckDB compiles a constant once. It holds numbers and signs alone, whatever the suite says.
        written = [str(for_re2(one)).replace("{", "{{").replace("}", "}}") for one in listed]
        joined = " AND " if kwargs.get("match_on") == "all" else " OR "
        found = joined.join("regexp_matches({c}, '" + one + "')" for one in written)
        return of_rows(kwargs, f"({found})" if wanted else f"NOT ({found})", ())

    return build


def _sequence(parts: Any, *, tail: bool, inside: bool, times: int) -> str:
    """The parts one after the other.

    Args:
        tail: nothing follows them.
        inside: they are repeated.
        times: how often they are written out.
    """
    listed = list(parts)
    last = len(listed) - 1
    return "".join(_part(str(one), of, tail and at == last, inside, times) for at, (one, of) in enumerate(listed))


def _part(name: str, of: Any, tail: bool, inside: bool, times: int) -> str:
    if name == "LITERAL":
        return _point(of)
    if name == "NOT_LITERAL":
        return f"[^{_point(of)}]"
    if name == "ANY":
        return r"[^\x{a}]"
    if name == "IN":
        return _set(of)
    if name == "AT":
        return _end(str(of), tail, inside)
    if name == "SUBPATTERN":
        _, added, removed, parts = of
        # DuckDB 2.0 rewrites `(?:)a` to a search for another text.
        if added or removed or not len(parts):
            raise _Other
        return f"(?:{_sequence(parts, tail=tail, inside=inside, times=times)})"
    if name == "BRANCH":
        return f"(?:{'|'.join(_sequence(one, tail=tail, inside=inside, times=times) for one in of[1])})"
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repeat(of[0], of[1], of[2], times)
    raise _Other


def _repeat(least: int, most: Any, parts: Any, times: int) -> str:
    endless = most == _PARSER.MAXREPEAT
    times *= max(least if endless else most, 1)
    if parts.getwidth()[0] == 0 or times > _MOST:
        raise _Other
    body = _sequence(parts, tail=False, inside=True, times=times)
    return f"(?:{body}){{{least},{'' if endless else most}}}"


def _end(name: str, tail: bool, inside: bool) -> str:
    if inside:
        raise _Other
    if name == "AT_END" and tail:
        return r"(?:\x{a}?\z)"
    if name not in _ENDS:
        raise _Other
    return _ENDS[name]


def _set(items: Iterable[tuple[Any, Any]]) -> str:
    written = ""
    for kind, of in items:
        name = str(kind)
        if name == "NEGATE":
            written += "^"
        elif name == "LITERAL":
            written += _point(of)
        elif name == "RANGE" and not (of[0] < _SURROGATES.start and of[1] >= _SURROGATES.stop):
            written += f"{_point(of[0])}-{_point(of[1])}"
        elif name == "CATEGORY" and str(of) in _CLASSES:
            written += _class(_CLASSES[str(of)])
        else:
            raise _Other
    return f"[{written}]"


@cache
def _class(name: str) -> str:
    """The ranges of the code points that one of Python's classes, such as `\\d`, has."""
    runs = [
        run[0]
        for points in (range(_SURROGATES.start), range(_SURROGATES.stop, sys.maxunicode + 1))
        for run in re.finditer(f"{name}+", "".join(map(chr, points)))
    ]
    return "".join(f"{_point(ord(run[0]))}-{_point(ord(run[-1]))}" for run in runs)


def _point(code: int) -> str:
    if code in _SURROGATES:
        raise _Other
    return f"\\x{{{code:x}}}"
