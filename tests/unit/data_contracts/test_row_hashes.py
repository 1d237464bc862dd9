"""Hashes of rows: the same for the same values, however they are stored; other values have others."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.profile.sketches import row_hashes, value_hashes

NAN = float("nan")
DAY = datetime(2026, 1, 1)


def hash_of(value: Any, type_: pa.DataType | None = None) -> int:
    return int(row_hashes([pa.array([value], type_)])[0])


SAME = [
    [(1, pa.int8()), (1, pa.int64()), (1, pa.uint64()), (1.0, pa.float32()), (True, pa.bool_()), (Decimal(1), None)],
    [(-5, pa.int16()), (-5, pa.int64()), (-5.0, pa.float64())],
    [(2**60 + 1, pa.int64()), (2**60 + 1, pa.uint64())],
    [(0.0, None), (-0.0, None), (0, None)],
    [(NAN, None), (None, pa.float64()), (None, pa.int8()), (None, pa.string()), (None, pa.null()), (None, pa.date32())],
    [(DAY, pa.timestamp("ms")), (DAY, pa.timestamp("ns")), (DAY, pa.timestamp("us")), (date(2026, 1, 1), None)],
    [(timedelta(seconds=2), pa.duration("s")), (timedelta(seconds=2), pa.duration("ns"))],
    [("ab", None), ("ab", pa.large_string()), (b"ab", None), (b"ab", pa.binary(2))],
    [([1, 2], pa.list_(pa.int8())), ([1, 2], pa.list_(pa.int64())), ([1.0, 2.0], pa.list_(pa.float32()))],
]


@pytest.mark.parametrize("same", SAME)
def test_the_same_value_in_another_type(same: list[tuple[Any, pa.DataType | None]]) -> None:
    assert len({hash_of(*one) for one in same}) == 1


def test_other_values_have_other_hashes() -> None:
    others: list[tuple[Any, pa.DataType | None]] = [
        *(one[0] for one in SAME),
        (2**60 + 2, None),
        (2**63, pa.uint64()),
        (-(2**63), None),
        ("", None),
        ("a", None),
        ("b", None),
        ("ab" * 200, None),
        ("ab" * 201, None),
        ([], pa.list_(pa.int8())),
        ([2, 1], pa.list_(pa.int8())),
        ([None], pa.list_(pa.int8())),
        ([1], pa.list_(pa.int8())),
        (np.nextafter(1, 2), None),
        (DAY + timedelta(microseconds=1), None),
        (1767225600000000001, pa.timestamp("ns")),
        (b"\0", pa.binary(1)),
    ]
    assert len({hash_of(*one) for one in others}) == len(others)


def test_order_and_number_of_columns() -> None:
    a, b = pa.array([1, 2, 3]), pa.array(["x", None, "z"])
    one = row_hashes([a, b])
    assert one.tolist() == row_hashes([b, a]).tolist()
    assert len(set(one.tolist()) | set(row_hashes([a]).tolist()) | set(row_hashes([a, b, b]).tolist())) == 9


def test_a_value_does_not_depend_on_those_around_it() -> None:
    rng = np.random.default_rng(1)
    columns = [
        pa.array([None if one % 5 == 0 else int(one) for one in rng.integers(-9, 9, 300)]),
        pa.array([None if one % 7 == 0 else "é" * (int(one) % 300) for one in rng.integers(0, 10_000, 300)]),
        pa.array([None if one % 5 == 0 else list(range(int(one) % 4)) for one in rng.integers(0, 99, 300)]),
        pa.array([None if one % 5 == 0 else bytes([int(one)] * 4) for one in rng.integers(0, 99, 300)], pa.binary(4)),
    ]
    whole = row_hashes(columns)
    parts = [row_hashes([one.slice(start, 41) for one in columns]) for start in range(0, 300, 41)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert [value_hashes(one.slice(0, 0)).tolist() for one in columns] == [[]] * 4


def test_the_hashes_stay_what_they_are() -> None:
    """The ledger of an earlier version knows rows by them."""
    table = [
        pa.array([1, None]),
        pa.array(["a", "b"]),
        pa.array([0.5, NAN]),
        pa.array([[1, 2], None]),
        pa.array([DAY, DAY]),
    ]
    assert row_hashes(table).tolist() == [17377411137588751846, 14846130617869072017]
