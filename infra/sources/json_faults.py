"""Says what is wrong with a line of JSON Lines, or with a value in it: in one sentence, without the value.

Arrow names neither the line nor, for most faults, the kind; so what it refuses is read again here, by Python.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from data_contracts.errors import UsageError
from data_contracts.quoting import column_shown
from infra.sources.types import Misfit, is_rounded, misfit

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WRITE = "Write JSON Lines, one object a line."
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_KINDS = {list: "an array", str: "a text", bool: "true or false"}


class Lines(NamedTuple):
    """Whole lines of a file, with the numbers of their first line, from 1, and row, from 0; blank lines are no rows."""

    line: int
    row: int
    data: bytes


class _Number(str):
    """A number as it is written."""


class _Object(list[tuple[str, Any]]):
    """An object's keys and values, with keys that occur twice."""


def bad_line(lines: Lines, name: str) -> UsageError | None:
    """The error for the first line that is not a JSON object; None if each is one."""
    for at, line in enumerate(lines.data.split(b"\n")):
        if line.strip() and (fault := _fault(line)):
            what, remedy = fault
            return UsageError(f"{name}: line {lines.line + at} {what}.", remedy=remedy)
    return None


def bad_value(lines: Lines, name: str, schema: pa.Schema) -> Misfit | None:
    """The error for the first value that the type of its column does not hold exactly; None if all are held.

    Raises: UsageError for a line that is not an object.
    """
    rows = (line for line in lines.data.split(b"\n") if line.strip())
    for row, line in enumerate(rows, lines.row):
        try:
            value = _loaded(line.decode())
        except ValueError as error:
            raise bad_line(lines, name) or error from error
        for path, kind, inner in _values(value, pa.struct(list(schema))):
            if kind is not None and not _holds(kind, inner):
                return misfit(name, row, "/".join(path), kind)
    return None


def _fault(line: bytes) -> tuple[str, str] | None:
    """What is wrong with a line and what to do, or None."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 at byte {error.start + 1} of the line", "Convert the file to UTF-8."
    if line.startswith(BYTE_ORDER_MARK):
        return "begins with a byte order mark, which only a file may", "Leave it out where files are joined."
    if text.lstrip().startswith("["):
        return "is an array, not a JSON object", _WRITE
    try:
        value = _loaded(text)
    except json.JSONDecodeError as error:
        return _not_json(text.rstrip(), error)
    if not isinstance(value, _Object) and value is not None:
        return f"is {_KINDS.get(type(value), 'a number')}, not a JSON object", _WRITE
    for path, _, inner in _values(value):
        column = column_shown("/".join(path))
        if isinstance(inner, _Object):
            keys = Counter(key for key, _ in inner)
            twice = [key for key, times in keys.items() if times > 1]
            if twice:
                return f"has the key {column_shown('/'.join((*path, twice[0])))} twice", "Leave one of them out."
            inner = "".join(keys)
        if isinstance(inner, _Number) and math.isinf(float(inner)):
            return f"has a number in the column {column} that is too large for float64", "Write it as a text."
        if isinstance(inner, str) and _SURROGATE.search(inner):
            where = f"the column {column}" if path else "a key"
            return f"has half of a character (a lone surrogate) in {where}", "Write both halves, or leave it out."
    return None


def _not_json(text: str, error: json.JSONDecodeError) -> tuple[str, str]:
    if text.lstrip().startswith("{") and (error.pos >= len(text) or error.msg.startswith("Unterminated")):
        remedy = "Write each object on a line of its own; if it is the last line, the file was cut off."
        return "ends before its object does", remedy
    why = error.msg.removesuffix(" at")
    return f"is not JSON at character {error.pos + 1} ({why[0].lower()}{why[1:]})", _WRITE


def _loaded(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number)


def _values(
    value: Any, kind: pa.DataType | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], pa.DataType | None, Any]]:
    """A value and all values in it: the column and the way from there, its type (None: it is not read), the value."""
    yield path, kind, value
    if isinstance(value, _Object):
        for key, inner in value:
            at = kind.get_field_index(key) if kind is not None and pa.types.is_struct(kind) else -1
            yield from _values(inner, kind.field(at).type if kind is not None and at >= 0 else None, (*path, key))
    elif isinstance(value, list):
        of_list = kind is not None and pa.types.is_list(kind)
        for inner in value:
            yield from _values(inner, kind.value_type if kind is not None and of_list else None, (*path, "[]"))


def _holds(kind: pa.DataType, value: Any) -> bool:
    """Whether a type holds a number or a time as it is written."""
    if isinstance(value, _Number) and pa.types.is_floating(kind):
        return not is_rounded(value, float(value))
    if not isinstance(value, str) or not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return True
    try:
        pa.array([str(value)]).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
