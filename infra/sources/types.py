"""The Arrow type of a column: what the texts in a CSV file mean, and what the types of two files have in common.

Also what is wrong with a line of JSON Lines, or with a value in it: in one sentence, without the value. Arrow names
neither the line nor, for most faults, the kind; so what it refuses is read again here, by Python.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from data_contracts.arrow_rows import first_misfit
from data_contracts.errors import UsageError
from data_contracts.quoting import column_shown, type_shown

_DAY = pa.date32()
_SECONDS, _MICROS, _NANOS = pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns")
_ZONED, _ZONED_NANOS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
# Possible types of a text, the narrowest first. After a type, only types that hold all of its values are possible.
_TIMES = [_DAY, _SECONDS, _MICROS, _NANOS, _ZONED, _ZONED_NANOS]
_LADDER = [pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), *_TIMES, pa.string()]
# In JSON, a number is not in quotes.
QUOTED = [*_TIMES, pa.string()]
_WIDER: dict[pa.DataType, list[pa.DataType]] = {
    pa.int64(): [pa.float64()],
    pa.uint64(): [],
    pa.float64(): [],
    pa.bool_(): [],
    _DAY: [_SECONDS, _MICROS, _NANOS],
    _SECONDS: [_MICROS, _NANOS],
    _MICROS: [_NANOS],
    _NANOS: [],
    _ZONED: [_ZONED_NANOS],
    _ZONED_NANOS: [],
    pa.string(): [],
}
_WIDEST = {pa.int64(): pa.float64(), pa.uint64(): pa.float64(), _DAY: _MICROS, _SECONDS: _MICROS}
_WHOLE = r"^[+-]?\d+$"
_EXACT = 2**53
_PROBE = 32
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WRITE = "Write JSON Lines, one object a line."
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_KINDS = {list: "an array", str: "a text", bool: "true or false"}


class Misfit(UsageError):
    """A value does not fit the type that its column is read with."""


def misfit(file: str, row: int, column: str, kind: pa.DataType) -> Misfit:
    """The error for a value that would change if it were read with its column's type."""
    return Misfit(
        f"{file}: {type_shown(kind)} cannot hold the value in row {row} of the column {column_shown(column)}, which has"
        " this type over all files.",
        remedy="Give the column one type in all files; write a number or a time that no type holds as a text.",
    )


def converted(
    values: pa.Array, kind: pa.DataType, convert: Callable[[pa.Array], pa.Array], file: str, row: int, column: str
) -> pa.Array:
    """The values as another type; Misfit for the first one that it cannot hold.

    Args:
        row: of the first value.
    """
    try:
        return convert(values)
    except pa.ArrowInvalid as error:
        raise misfit(file, row + first_misfit(values, convert), column, kind) from error


def refuse_twice_named(uri: str, names: list[str]) -> None:
    """UsageError if two columns of a file have one name."""
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        shown = column_shown(twice[0], names.index(twice[0]))
        raise UsageError(f"{uri} has the column {shown} twice.", remedy="Rename one of them.")


@dataclass(frozen=True)
class Notation:
    """How the numbers of a CSV file are written: the decimal mark, and what groups digits ("" if nothing does)."""

    decimal: str = "."
    thousands: str = ""

    def plain(self, texts: pa.Array) -> pa.Array:
        """Numbers as other programs write them; ArrowInvalid if a text is no number of this notation."""
        if self.thousands:
            mark, decimal = re.escape(self.thousands), re.escape(self.decimal)
            grouped = pc.match_substring(texts, self.thousands)
            # 01.02.2024 is a day and 1.2 another notation, which pandas takes for the numbers 1022024 and 12.
            whole = rf"^[+-]?\d{{1,3}}(?:{mark}\d{{2,3}})*{mark}\d{{3}}(?:{decimal}\d*)?$"
            if pc.any(pc.and_not(grouped, pc.match_substring_regex(texts, whole))).as_py():
                raise pa.ArrowInvalid("digits are grouped otherwise")
            texts = pc.replace_substring(texts, self.thousands, "")
        if self.decimal != ".":
            if _has(texts, "."):
                raise pa.ArrowInvalid("the decimal mark is another one")
            texts = pc.replace_substring(texts, self.decimal, ".")
        return texts


PLAIN = Notation()


class Guess:
    """The type of a column of texts, determined from the texts in order.

    Args:
        ladder: the possible types; without numbers, for the texts of JSON, where blanks count.

    Attributes:
        text_from: row of the first text that made the column a string column although earlier texts were not; else
            None.
    """

    def __init__(self, ladder: Sequence[pa.DataType] = _LADDER, notation: Notation = PLAIN) -> None:
        self._notation = notation
        self.text_from: int | None = None
        self._ladder = ladder
        self._kind: pa.DataType = pa.null()
        self._blank = False  # there was a quoted empty string, which is a value only among texts
        self._wide = False  # there was a whole number that float64 would round
        self._signed = False

    @property
    def kind(self) -> pa.DataType:
        """The narrowest type that holds every text so far; null if all were missing."""
        return pa.string() if pa.types.is_null(self._kind) and self._blank else self._kind

    def show(self, texts: pa.Array, first_row: int) -> None:
        """Take in more texts; null is missing."""
        if self._kind == pa.string():
            return
        values = _trimmed(texts) if self._ladder is _LADDER else texts
        if values.null_count == len(values):
            self._blank |= texts.null_count < len(texts)
            return
        ladder = self._ladder if pa.types.is_null(self._kind) else [self._kind, *_WIDER[self._kind], pa.string()]
        if self._kind == pa.int64() and not self._signed:
            ladder = [pa.int64(), pa.uint64(), *ladder[1:]]
        before = self._kind
        self._kind = next(kind for kind in ladder if self._holds(values, kind))
        if self._kind == pa.string():
            if pa.types.is_null(before):
                first = values.drop_null()[:1]
                before = next(kind for kind in self._ladder if self._holds(first, kind))
            widest = _WIDEST.get(before, before)
            with suppress(pa.ArrowInvalid):
                _plain(values, widest, self._notation).cast(widest)
                return
            self.text_from = first_row + first_misfit(
                values, lambda some: _plain(some, widest, self._notation).cast(widest)
            )

    def _holds(self, values: pa.Array, kind: pa.DataType) -> bool:
        if kind == pa.string():
            return True
        try:
            _cast(values[:_PROBE], kind, self._notation)  # a cast that fails takes as long as thirty that succeed
            cast = _cast(values, kind, self._notation)
        except pa.ArrowInvalid:
            return False
        if pa.types.is_integer(kind):
            span = pc.min_max(cast).as_py()
            self._signed |= span["min"] < 0
            self._wide |= span["min"] < -_EXACT or span["max"] > _EXACT
        if kind == pa.float64():
            # 12345678901234567890 among values such as 0.5: float64 would change its digits, so the column stays text.
            return not self._wide and not _rounds(_plain(values, kind, self._notation), cast)
        return True


def from_texts(texts: pa.Array, kind: pa.DataType, notation: Notation = PLAIN) -> pa.Array:
    """CSV texts as values of `kind`; ArrowInvalid for one that `kind` does not hold, which may be of another file."""
    if kind == pa.string():
        return texts
    if pa.types.is_null(kind):
        return pa.nulls(len(texts), kind)
    values = _trimmed(texts)
    cast = _cast(values, kind, notation)
    if (
        pa.types.is_float64(kind)
        and _rounds(written := _plain(values, kind, notation), cast)
        and any(map(is_rounded, written.drop_null().to_pylist(), cast.drop_null().to_pylist()))
    ):  # a whole number among the floats of other files; in one file, such a column stays text
        raise pa.ArrowInvalid("float64 would round a number")
    return cast


def is_rounded(text: str, number: float) -> bool:
    """Whether `number`, the float64 of a text, is another number, such as 2**53 for 2**53 + 1 or infinity for 1e400."""
    if math.isinf(number):
        return re.search(r"\d", text) is not None
    return re.match(_WHOLE, text) is not None and int(text) != number


def cast_exactly(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of a type of their own as `kind`; ArrowInvalid if one does not fit, such as an integer that is rounded."""
    if not (pa.types.is_integer(values.type) and pa.types.is_floating(kind)):
        return values.cast(kind)
    cast = values.cast(kind, safe=False)
    if not cast.cast(values.type, safe=False).equals(values):
        raise pa.ArrowInvalid("an integer is rounded")
    return cast


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: a dictionary's value type, text and bytes with one kind of offset."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def common(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, or None: numbers widen, dates become times, nothing becomes text."""
    if first == second:
        return first
    for a, b in ((first, second), (second, first)):
        if pa.types.is_null(a):
            return b
        if pa.types.is_date(a) and pa.types.is_timestamp(b) and b.tz is None:
            return b
    if pa.uint64() in (first, second) and pa.types.is_integer(first) and pa.types.is_integer(second):
        return pa.uint64()  # Arrow would choose int64; a negative number is refused when it is read
    apart = (pa.types.is_string, pa.types.is_binary, pa.types.is_boolean)
    if any(kind(first) != kind(second) for kind in apart):
        return None
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (first, second)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowTypeError:
        return None


def _trimmed(texts: pa.Array) -> pa.Array:
    stripped = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(stripped, ""), None, stripped)


def _plain(values: pa.Array, kind: pa.DataType, notation: Notation) -> pa.Array:
    """Texts as Arrow casts them to a kind."""
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return notation.plain(values) if numbers and notation != PLAIN else values


def _cast(values: pa.Array, kind: pa.DataType, notation: Notation) -> pa.Array:
    values = _plain(values, kind, notation)
    if kind == pa.bool_() and _has(values, "0", "1"):
        raise pa.ArrowInvalid("0 and 1 are numbers")  # otherwise the type would depend on which rows a block holds
    if pa.types.is_integer(kind) and _has(values, "x", "X"):
        raise pa.ArrowInvalid("Arrow reads 0x10 as 16; here it is a text")
    if pa.types.is_integer(kind) and _has(values, "+"):
        values = pc.replace_substring_regex(values, r"^\+(\d)", r"\1")  # Arrow does not read +5
    return values.cast(kind)


def _has(values: pa.Array, *signs: str) -> bool:
    return any(pc.any(pc.match_substring(values, sign)).as_py() for sign in signs)


def _rounds(values: pa.Array, cast: pa.Array) -> bool:
    """Whether float64 changes a text's digits, or takes 1e400 for infinite."""
    large = pc.greater_equal(pc.abs(cast), _EXACT)
    if not pc.any(large).as_py():
        return False
    texts, infinite = values.filter(large), pc.is_inf(cast).filter(large)
    written = [pc.match_substring_regex(texts, _WHOLE), pc.and_(infinite, pc.match_substring_regex(texts, r"\d"))]
    return bool(pc.any(pc.or_(*written)).as_py())


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
