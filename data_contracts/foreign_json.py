"""Parses JSON that others may have written: its depth and its number of values are bounded before a parser sees it.

A parser that recurses in C ends the whole process, and small lists take twenty times their bytes in memory.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 100
# The resolved inputs of a run with some hundred thousand files have fewer objects and lists.
MAX_CONTAINERS = 5_000_000
_TEXT = re.compile(rb'"[^"]*"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))


class TooDeep(ValueError):
    """JSON that is nested deeper than MAX_DEPTH levels."""


def parse_json(data: bytes, **hooks: Any) -> Any:
    """The value of JSON in UTF-8; ValueError if it is not JSON or, before it is parsed, as `check_nesting`.

    Args:
        hooks: as for `json.loads`.
    """
    check_nesting(data)
    return json.loads(data.decode(), **hooks)


def check_nesting(data: bytes) -> None:
    """TooDeep if JSON, or lines of JSON, nest deeper than MAX_DEPTH; ValueError with more than MAX_CONTAINERS in it."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Most texts hold no bracket: they are gone before the slower expression looks for the others.
    brackets = _TEXT.sub(b"", data.translate(_ALIKE, _OTHERS).replace(b'""', b""))
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise ValueError(f"there are more than {MAX_CONTAINERS:,} objects and lists")
    for _ in range(MAX_DEPTH):  # each time, the innermost level goes
        brackets = brackets.replace(b"[]", b"")
    opening = brackets.count(b"[")
    # A few brackets that nothing closes are no depth: the parser names the mistake.
    if opening > MAX_DEPTH or (opening and 2 * opening == len(brackets)):
        raise TooDeep(f"a value is nested deeper than {MAX_DEPTH} levels")
