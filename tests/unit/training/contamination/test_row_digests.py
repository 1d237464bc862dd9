"""Rows have equal digests where, and only where, Python finds their values equal: null, NaN and -0.0 included."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.contamination.exact import row_digests

COLUMNS = {
    "int8": (pa.int8(), st.integers(-2, 2)),
    "uint64": (pa.uint64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    "bool": (pa.bool_(), st.booleans()),
    "float32": (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf])),
    "float64": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.nan, 5e-324])),
    "string": (pa.string(), st.sampled_from(["", "a", "a\0", "é", "e\u0301"])),
    "bytes": (pa.binary(), st.sampled_from([b"", b"a", b"\0"])),
    "tensor": (pa.binary(2), st.sampled_from([b"ab", b"ac"])),
    "decimal": (pa.decimal128(5, 2), st.sampled_from([Decimal("1.10"), Decimal("1.1"), Decimal("-1")])),
    "date": (pa.date32(), st.sampled_from([date(2026, 1, 1), date(1900, 1, 1)])),
    "time": (pa.timestamp("us", "UTC"), st.sampled_from([datetime(2026, 1, 1, tzinfo=UTC)])),
    "list": (pa.list_(pa.float32()), st.lists(st.sampled_from([0.0, -0.0, math.nan, None]), max_size=2)),
    "texts": (pa.list_(pa.string()), st.lists(st.sampled_from(["", "a", "ab", "b", None]), max_size=2)),
}


def plain(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(plain, value))
    return "nan" if isinstance(value, float) and math.isnan(value) else value


@pytest.mark.parametrize("kinds", [[kind] for kind in COLUMNS] + [["string", "string"], ["list", "float32"]], ids=str)
@given(data=st.data())
def test_equal_digests_are_equal_values(kinds: list[str], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*(st.none() | COLUMNS[kind][1] for kind in kinds)), min_size=1, max_size=8))
    columns = [pa.chunked_array([pa.array([row[i] for row in rows], COLUMNS[kind][0])]) for i, kind in enumerate(kinds)]
    # As they are stored, which for float32 and decimals is not as they were drawn.
    values = [tuple(map(plain, row)) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    found = [tuple(row) for row in row_digests(columns).tolist()]
    for i, one in enumerate(found):
        for j, other in enumerate(found):
            assert (one == other) == (values[i] == values[j]), (values[i], values[j])


def test_a_number_s_width_chunks_and_offset_do_not_count() -> None:
    narrow = pa.chunked_array([pa.array([1, 2], pa.int8()), pa.array([None, 3], pa.int8())])
    wide = pa.chunked_array([pa.array([0, 1, 2, None, 3], pa.int64()).slice(1)])
    assert row_digests([narrow]).tolist() == row_digests([wide]).tolist()
    texts = pa.chunked_array([pa.array(["x", "a", None], pa.large_string()).slice(1)])
    assert row_digests([texts]).tolist() == row_digests([pa.chunked_array([["a"], [None]], pa.string())]).tolist()
