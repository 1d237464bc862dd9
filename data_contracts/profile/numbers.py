"""Reads numbers and flags of an Arrow column from its buffers: faster than Arrow's own filter of missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def without_nulls(column: pa.Array) -> NDArray[Any]:
    """The values of a column of integers, of floating point or of booleans (as 0 and 1), in order."""
    validity, values = column.buffers()
    if not len(column) or values is None:
        return np.empty(0)
    if pa.types.is_boolean(column.type):
        numbers = _bits(values, column)
    else:
        numbers = np.frombuffer(values, column.type.to_pandas_dtype())[column.offset :][: len(column)]
    return numbers if validity is None or not column.null_count else numbers[_bits(validity, column).view(bool)]


def _bits(buffer: pa.Buffer, column: pa.Array) -> NDArray[np.uint8]:
    """The bit of each row, as 0 or 1."""
    start, stop = column.offset, column.offset + len(column)
    packed = np.frombuffer(buffer, np.uint8)[start // 8 : -(-stop // 8)]
    return np.unpackbits(packed, bitorder="little")[start % 8 :][: len(column)]
