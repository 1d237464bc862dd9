"""Rows with every kind of column that a shard can hold, as Arrow makes them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

COLUMNS: dict[str, tuple[pa.Array, str]] = {
    "int8": (pa.array([1, -5, None], pa.int8()), "int8"),
    "int64": (pa.array([2**63 - 1, -(2**63), 0], pa.int64()), "int64"),
    "uint64": (pa.array([1, 2**63 - 1, None], pa.uint64()), "uint64"),
    "float32": (pa.array([1.5, None, float("inf")], pa.float32()), "float32"),
    "float16": (pa.array(np.array([1, 2, -3], np.float16)), "float16"),
    "bool": (pa.array([True, None, False]), "bool"),
    "string": (pa.array(["a", None, "é"]), "string"),
    "large_string": (pa.array(["a", None, ""], pa.large_string()), "string"),
    "dictionary": (pa.array(["x", "y", "x"]).dictionary_encode(), "string"),
    "string_view": (pa.array(["a", None, "b"], pa.string_view()), "string"),
    "dictionaries": (
        pa.ListArray.from_arrays([0, 1, 1, 2], pa.array(["x", "y"]).dictionary_encode()),
        "list<string>",
    ),
    "bytes": (pa.array([b"", None, b"x\0"]), "bytes"),
    "binary_view": (pa.array([b"a", None, b"b"], pa.binary_view()), "bytes"),
    "fixed_bytes": (pa.array([b"ab", None, b"cd"], pa.binary(2)), "bytes"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16] * 3, pa.binary(16))), "bytes"),
    "timestamp": (pa.array([1, None, -7], pa.timestamp("ns", "UTC")), "timestamp[ns,UTC]"),
    "seconds": (pa.array([1, None, -7], pa.timestamp("s")), "timestamp[ms]"),
    "date32": (pa.array([1, None, -3], pa.date32()), "date32"),
    "date64": (pa.array([86_400_000, None, 0], pa.date64()), "timestamp[ms]"),
    "time32": (pa.array([1, None, 3], pa.time32("s")), "time32[ms]"),
    "time64": (pa.array([1, None, 3], pa.time64("ns")), "time64[ns]"),
    "duration": (pa.array([1, None, -3], pa.duration("us")), "duration[us]"),
    "null": (pa.nulls(3), "null"),
    "ints": (pa.array([[1, -2], [], None]), "list<int64>"),
    "floats": (pa.array([[1.0], [2.0, 3.0], []], pa.list_(pa.float32())), "list<float32>"),
    "ragged": (pa.array([[1], [2, 3], [4]], pa.list_(pa.int8())), "list<int8>"),
    "bools": (pa.array([[True], [], None]), "list<bool>"),
    "strings": (pa.array([["a", ""], None, []]), "list<string>"),
    "large_list": (pa.array([["q"], None, ["r", "s"]], pa.large_list(pa.large_string())), "list<string>"),
    "empty_lists": (pa.array([[], [], []], pa.list_(pa.int32())), "list<int32>"),
    "nested": (
        pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]], None], pa.list_(pa.list_(pa.uint8()))),
        "tensor<uint8>[2,2]",
    ),
    "fixed": (pa.array([[1, 2], [3, 4], None], pa.list_(pa.float64(), 2)), "tensor<float64>[2]"),
    "flags": (pa.array([[True, False]] * 3), "tensor<bool>[2]"),
    "arrow_tensor": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.float32(), (1, 2)), pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2))
        ),
        "tensor<float32>[1,2]",
    ),
}

PARQUET_ONLY: dict[str, tuple[pa.Array, str]] = {
    "float64": (pa.array([0.1, None, float("-inf")]), "float64"),
    "decimal": (pa.array([1, None, 3], pa.decimal128(7, 2)), "decimal(7,2)"),
    "decimal32": (pa.array([1, None, 3], pa.decimal32(7, 2)), "decimal(7,2)"),
    "large_uint64": (pa.array([2**64 - 1, 0, 1], pa.uint64()), "uint64"),
    "null_inside": (pa.array([[1, None], [], [2]]), "list<int64>"),
    "null_in_even": (pa.array([[1, None], [3, 4], [5, 6]]), "list<int64>"),
    "ragged64": (pa.array([[0.1], [], [2.0, 3.0]]), "list<float64>"),
}


def every_kind() -> pa.Table:
    """Three rows with a column of each kind that both formats hold."""
    return pa.table({name: array for name, (array, _) in COLUMNS.items()})
