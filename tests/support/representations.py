"""Columns, and the other forms in which Arrow can hold the same values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

_DAYS = st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))
_MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))
VALUES = {
    pa.string(): st.sampled_from(["", "a", "b", "é", "a\0b"]),
    pa.binary(): st.sampled_from([b"", b"a", b"\xff", b"a\0b"]),
    pa.int64(): st.integers(-3, 3) | st.just(2**53 + 1),
    pa.float64(): st.sampled_from([0.0, 0.5, -1.5, float("inf"), 1e300]),
    pa.bool_(): st.booleans(),
    pa.date32(): _DAYS,
    pa.timestamp("us"): _MOMENTS,
    pa.decimal128(9, 2): st.integers(-9, 9).map(lambda number: Decimal(number) / 4),
}
WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
VIEWS = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """A column of up to 8 rows, perhaps of none, with nulls in some rows, in all or in none."""
    kind = draw(st.sampled_from(list(VALUES)))
    value = draw(st.sampled_from([VALUES[kind], VALUES[kind] | st.none(), st.none()]))
    return pa.array(draw(st.lists(value, max_size=8)), kind)


def coded(values: pa.Array, dictionary: pa.Array | None = None) -> pa.DictionaryArray:
    """A dictionary that has an entry for each row, so also nulls and values that are there twice."""
    return pa.DictionaryArray.from_arrays(
        pa.array(range(len(values)), pa.int16()), values if dictionary is None else dictionary
    )


def part(values: pa.Array) -> pa.Array:
    """The same rows as a slice of more."""
    more = pa.concat_arrays([values, values, values])
    return more.slice(len(values), len(values))


def _cast(to: dict[pa.DataType, pa.DataType]) -> Callable[[pa.Array], pa.Array]:
    return lambda values: values.cast(to.get(values.type, values.type))


def _extension(values: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.opaque(values.type, "kind", "vendor"), values)


# A Parquet file cannot hold the last ones.
IN_FILES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "plain": lambda values: values,
    "wide": _cast(WIDE),
    "view": _cast(VIEWS),
    "dictionary": lambda values: values.dictionary_encode(),
    "slice": part,
    "slice of a dictionary": lambda values: part(values.dictionary_encode()),
}
ALL: dict[str, Callable[[pa.Array], pa.Array]] = {
    **IN_FILES,
    "nulls in a dictionary": coded,
    "dictionary of a dictionary": lambda values: coded(values, coded(values)),
    "dictionary of a view": lambda values: coded(values, _cast(VIEWS)(values)),
    "slice of nulls in a dictionary": lambda values: part_of_coded(values),
    "extension": _extension,
    "slice of an extension": lambda values: part(_extension(values)),
}


def part_of_coded(values: pa.Array) -> pa.Array:
    """The same rows as a slice of a dictionary that has nulls."""
    more = pa.array([*range(len(values)), *range(len(values))], pa.int16())
    return pa.DictionaryArray.from_arrays(more, values).slice(len(values))


def in_chunks(form: Callable[[pa.Array], pa.Array], values: pa.Array) -> pa.ChunkedArray:
    """The rows in two chunks, of which dictionaries are not the same."""
    middle = len(values) // 2
    return pa.chunked_array([form(values[:middle]), form(values[middle:])])
