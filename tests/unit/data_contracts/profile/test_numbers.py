"""What is read from a column's buffers is what Arrow's own filter of missing values leaves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from data_contracts.profile.sketches import without_nulls

ROWS = 100


def column(kind: pa.DataType, nulls: float) -> pa.Array:
    """Numbers of a type, of which this share is missing."""
    draw = np.random.default_rng(3)
    return pa.array(draw.integers(0, 2, ROWS), pa.int64(), mask=draw.random(ROWS) < nulls).cast(kind)


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.int32(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("start", "rows"), [(0, ROWS), (8, 16), (3, 9), (13, 87), (50, 0)])
def test_values_are_those_that_arrow_keeps(kind: pa.DataType, nulls: float, start: int, rows: int) -> None:
    part = column(kind, nulls).slice(start, rows)
    assert without_nulls(part).tolist() == pc.drop_null(part).cast(pa.float64()).to_pylist()


def test_a_missing_value_may_stand_for_any_bytes() -> None:
    numbers = pa.Array.from_buffers(pa.float64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, np.nan, 2.0]))])
    assert without_nulls(numbers).tolist() == [1, 2]
    assert without_nulls(pa.nulls(2, pa.float64())).tolist() == []
