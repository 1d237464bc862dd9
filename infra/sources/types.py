"""The Arrow type of a column: what the texts in a CSV file mean, and what the types of two files have in common."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_DAY = pa.date32()
_SECONDS, _MICROS, _NANOS, _ZONED = pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC")
# Possible types of a text, the narrowest first. After a type, only types that hold all of its values are possible.
_LADDER = [pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), _DAY, _SECONDS, _MICROS, _NANOS, _ZONED, pa.string()]
_WIDER: dict[pa.DataType, list[pa.DataType]] = {
    pa.int64(): [pa.float64()],
    pa.uint64(): [],
    pa.float64(): [],
    pa.bool_(): [],
    _DAY: [_SECONDS, _MICROS, _NANOS],
    _SECONDS: [_MICROS, _NANOS],
    _MICROS: [_NANOS],
    _NANOS: [],
    _ZONED: [],
    pa.string(): [],
}
_WIDEST = {pa.int64(): pa.float64(), pa.uint64(): pa.float64(), _DAY: _MICROS, _SECONDS: _MICROS}
_WHOLE = r"^[+-]?\d+$"
_EXACT = 2**53
_PROBE = 32


class Guess:
    """The type of a CSV column, determined from the column's texts in order.

    Attributes:
        text_from: row of the first text that made the column a string column although earlier texts were not; else
            None.
    """

    def __init__(self) -> None:
        self.text_from: int | None = None
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
        values = _trimmed(texts)
        if values.null_count == len(values):
            self._blank |= texts.null_count < len(texts)
            return
        ladder = _LADDER if pa.types.is_null(self._kind) else [self._kind, *_WIDER[self._kind], pa.string()]
        if self._kind == pa.int64() and not self._signed:
            ladder = [pa.int64(), pa.uint64(), *ladder[1:]]
        before = self._kind
        self._kind = next(kind for kind in ladder if self._holds(values, kind))
        if self._kind == pa.string():
            if pa.types.is_null(before):
                first = values.drop_null()[:1]
                before = next(kind for kind in _LADDER if self._holds(first, kind))
            at = _first_refused(values, before)
            self.text_from = None if at is None else first_row + at

    def _holds(self, values: pa.Array, kind: pa.DataType) -> bool:
        if kind == pa.string():
            return True
        try:
            _cast(values[:_PROBE], kind)  # a cast that fails takes as long as thirty that succeed
            cast = _cast(values, kind)
        except pa.ArrowInvalid:
            return False
        if pa.types.is_integer(kind):
            span = pc.min_max(cast).as_py()
            self._signed |= span["min"] < 0
            self._wide |= span["min"] < -_EXACT or span["max"] > _EXACT
        if kind == pa.float64():
            # 12345678901234567890 among values such as 0.5: float64 would change its digits, so the column stays text.
            return not self._wide and not _rounds(values, cast)
        return True


def from_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """CSV texts as values of `kind`, a type that `Guess` found for them (or a wider one)."""
    if kind == pa.string():
        return texts
    return pa.nulls(len(texts), kind) if pa.types.is_null(kind) else _cast(_trimmed(texts), kind)


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding: a dictionary's value type, text and bytes with one kind of offset."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, or None: numbers widen, dates become times, nothing becomes text."""
    if one == other:
        return one
    for a, b in ((one, other), (other, one)):
        if pa.types.is_null(a):
            return b
        if pa.types.is_date(a) and pa.types.is_timestamp(b) and b.tz is None:
            return b
    if pa.uint64() in (one, other) and pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.uint64()  # Arrow would choose int64; a negative number is refused when it is read
    apart = (pa.types.is_string, pa.types.is_binary, pa.types.is_boolean)
    if any(kind(one) != kind(other) for kind in apart):
        return None
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowTypeError:
        return None


def _trimmed(texts: pa.Array) -> pa.Array:
    stripped = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.equal(stripped, ""), None, stripped)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.bool_() and _has(values, "0", "1"):
        raise pa.ArrowInvalid("0 and 1 are numbers")  # otherwise the type would depend on which rows a block holds
    if pa.types.is_integer(kind) and _has(values, "x", "X"):
        raise pa.ArrowInvalid("Arrow reads 0x10 as 16; here it is a text")
    return values.cast(kind)


def _has(values: pa.Array, *signs: str) -> bool:
    return any(pc.any(pc.match_substring(values, sign)).as_py() for sign in signs)


def _rounds(values: pa.Array, cast: pa.Array) -> bool:
    large = pc.greater_equal(pc.abs(cast), _EXACT)
    return bool(pc.any(large).as_py() and pc.any(pc.match_substring_regex(values.filter(large), _WHOLE)).as_py())


def _first_refused(values: pa.Array, kind: pa.DataType) -> int | None:
    """Index of the first text that fits neither `kind` nor the widest type of its kind, or None.

    Uses bisection: a cast that fails is slow and does not say where it failed.
    """
    kind = _WIDEST.get(kind, kind)
    low, high = 0, len(values)
    try:
        values.cast(kind)
        return None
    except pa.ArrowInvalid:
        pass
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values[low:middle].cast(kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
