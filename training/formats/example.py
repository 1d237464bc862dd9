"""Rows as `tf.train.Example` messages in protobuf's wire format, without TensorFlow.

    Example { Features features = 1 }            Feature { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }
    Features { map<string, Feature> feature = 1 }        each list: { repeated value = 1 }, numbers packed

A null is a feature that is absent. Integers, booleans and times are Int64List; float16 and float32 are FloatList;
strings, bytes and tensors (raw, row-major, little-endian) are BytesList. We write features in the schema's order; we
read any order, unpacked numbers and unknown fields. Wire format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from training.formats.kernels.native import BYTES, FLOAT, INT64


class Malformed(ValueError):
    """A message that is not a tf.train.Example, or does not fit the schema; `row` is its number."""

    def __init__(self, row: int | np.integer, message: str) -> None:
        super().__init__(message)
        self.row = int(row)


def kind_of(type_: pa.DataType) -> int | None:
    """The field number of the list that holds a column of this type; None if no list can."""
    if pa.types.is_list(type_):
        return kind_of(type_.value_type)
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return BYTES
    if pa.types.is_float16(type_) or pa.types.is_float32(type_):
        return FLOAT
    whole = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null, pa.types.is_temporal)
    return INT64 if any(is_one(type_) for is_one in whole) else None


@dataclass(frozen=True)
class Framed:
    """Records in a buffer: the whole buffer, and the place of each message in it."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, of any shape, as a read-only array: Numba compiles separately for every kind of array."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array
