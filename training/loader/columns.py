"""The columns of `train.batch`: how each is decoded from a shard, and what it becomes in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec.train import LENGTH
from training.formats.schema import pick, tensor_of

BatchSpec = list[str | list[str]] | dict[str, str | list[str]] | None
PIECE = 4096


@dataclass(frozen=True)
class Fixed:
    """Columns whose rows are one array of `shape` values each; several columns are stacked.

    Attributes:
        dtype: of the tensor; 64-bit floats become 32-bit, torch's default.
    """

    columns: tuple[str, ...]
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def decode(self, table: pa.Table, out: NDArray[Any]) -> None:
        """Write the table's rows into `out`, (rows, *shape); UsageError for a missing value."""
        arrays = [numbers(table, name) for name in self.columns]
        if len(arrays) == 1:
            out[...] = arrays[0].reshape(out.shape)  # a column in a list by itself: (rows, 1)
            return
        # Piece by piece, so that the lines of `out` stay in the processor's cache until all columns are in them.
        for at in range(0, len(out), PIECE):
            for place, array in enumerate(arrays):
                out[at : at + PIECE, place] = array[at : at + PIECE]

    def batches(self, values: NDArray[Any] | torch.Tensor, size: int) -> list[torch.Tensor]:
        """Views of `values`, (rows, *shape), of `size` rows each."""
        whole = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
        return list(whole.split(size))


@dataclass(frozen=True)
class Varying:
    """A column whose rows differ in length, kept in Arrow's format: texts, bytes, lists.

    Attributes:
        pad: the value that fills up shorter rows; None: a list of tensors (of texts or bytes: a plain list).
        lengths: the number of values of each row instead of the values.
    """

    columns: tuple[str, ...]
    pad: bool | int | float | None = None
    lengths: bool = False

    def decode(self, table: pa.Table) -> pa.Array:
        """The table's rows; UsageError for a missing value that a tensor cannot show."""
        column = table.column(self.columns[0]).combine_chunks()
        if column.null_count and (self.pad is not None or self.lengths):
            raise _missing(self.columns[0], column)
        if _is_ragged(column.type) and not pa.types.is_floating(column.type.value_type):
            values = column.flatten()
            if values.null_count:
                raise _missing(self.columns[0], values)
        return column

    def batches(self, values: pa.Array, size: int) -> list[Any]:
        """Batches of `size` rows each."""
        parts = [values[at : at + size] for at in range(0, len(values), size)]
        if self.lengths:
            return [torch.from_numpy(np.diff(_numpy(part.offsets))).long() for part in parts]
        if self.pad is not None:
            return [_padded(part, self.pad) for part in parts]
        is_list = pa.types.is_list(values.type)
        return [_tensors(part) if is_list else part.to_pylist() for part in parts]


Column = Fixed | Varying


def columns_of(schema: pa.Schema, batch: BatchSpec, pad: dict[str, Any]) -> tuple[list[Any] | None, list[Column]]:
    """The keys of a batch (None: the batch is a tuple) and its columns.

    Raises:
        UsageError: there is no such column, or the column cannot be used as asked.
    """
    for name in pad:
        if not _is_ragged(pick(schema, [name]).field(0).type):
            raise UsageError(
                f"train.loader.pad: column {name!r} is not a list of numbers, so there is nothing to pad.",
                remedy="Leave it out of train.loader.pad.",
            )
        if schema.get_field_index(name + LENGTH) >= 0:
            raise UsageError(
                f"train.loader.pad: {name}{LENGTH} would be the lengths of {name!r}, but it is a column of its own.",
                remedy="Rename that column in shards.transform.",
            )
    if batch is None:
        names = [each for name in schema.names for each in ([name, name + LENGTH] if name in pad else [name])]
        batch = {name: name for name in names}
    entries = batch if isinstance(batch, list) else list(batch.values())
    return (None if isinstance(batch, list) else list(batch)), [_column(schema, entry, pad) for entry in entries]


def names_of(columns: list[Column]) -> list[str]:
    """The dataset's columns to read, each once."""
    return list(dict.fromkeys(name for column in columns for name in column.columns))


def _column(schema: pa.Schema, entry: str | list[str], pad: dict[str, Any]) -> Column:
    if isinstance(entry, list):
        for name in entry:
            kind = _fixed(pick(schema, [name]).field(0))
            if kind is None or kind[1]:
                raise UsageError(
                    f"train.batch: column {name!r} is not one number per row, so it cannot be stacked with others.",
                    remedy="Name it as an entry of its own, or turn it into numbers in shards.transform.",
                )
        return Fixed(tuple(entry), np.dtype(np.float32), (len(entry),))
    if entry.endswith(LENGTH) and entry.removesuffix(LENGTH) in pad:
        return Varying((entry.removesuffix(LENGTH),), lengths=True)
    field = pick(schema, [entry]).field(0)
    kind = _fixed(field)
    if kind is not None:
        return Fixed((entry,), *kind)
    if pa.types.is_list(field.type) and not _is_ragged(field.type):
        raise UsageError(
            f"train.batch: column {entry!r} is {field.type}, of which no tensor can be made.",
            remedy="Leave it out, or turn it into numbers in shards.transform.",
        )
    return Varying((entry,), pad.get(entry))


def _fixed(field: pa.Field) -> tuple[np.dtype, tuple[int, ...]] | None:
    """A row's type and shape in a tensor; None if rows differ in length."""
    tensor, kind = tensor_of(field), field.type
    if tensor is not None:
        return _narrow(tensor[0]), tensor[1]
    if pa.types.is_temporal(kind):
        return np.dtype(np.int32 if kind.bit_width == 32 else np.int64), ()
    if pa.types.is_decimal(kind):
        return np.dtype(np.float32), ()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return _narrow(np.dtype(kind.to_pandas_dtype())), ()
    return None


def _narrow(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def _is_ragged(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind):
        return False
    item = kind.value_type
    return pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item)


def numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """One column of a table, without a copy where Arrow allows it."""
    field, column = table.schema.field(name), table.column(name)
    kind, tensor = field.type, tensor_of(field)
    if column.null_count and not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise _missing(name, column)
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if tensor is not None:
        dtype, shape = tensor
        first, last = array.offset * kind.byte_width, (array.offset + len(array)) * kind.byte_width
        flat = np.frombuffer(array.buffers()[1], np.uint8)[first:last]
        return flat.view(dtype.newbyteorder("<")).reshape(len(array), *shape)
    if pa.types.is_temporal(kind):
        return _numpy(array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()))
    return _numpy(array.cast(pa.float64()) if pa.types.is_decimal(kind) else array)


def _numpy(array: pa.Array) -> NDArray[Any]:
    """The values of an array, without a copy where Arrow allows it."""
    numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if numbers and not array.null_count:
        return np.from_dlpack(array)  # the same memory; `to_numpy` would import pandas, a tenth of a rank's start
    return array.to_numpy(zero_copy_only=False)


def _missing(name: str, rows: pa.Array | pa.ChunkedArray) -> UsageError:
    return UsageError(
        f"Column {name!r} has no value in {rows.null_count} of {len(rows)} rows, which a tensor cannot express.",
        remedy="Fill or drop them in shards.transform, or leave the column out of train.batch.",
    )


def _values(lists: pa.Array) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The values of all rows one after another, and the number of values in each row."""
    flat = _numpy(lists.flatten())
    counts = np.diff(_numpy(lists.offsets))
    if lists.null_count:
        counts = np.where(lists.is_valid().to_numpy(zero_copy_only=False), counts, 0)
    # Arrow's arrays are read-only; a batch must be writable.
    return np.array(flat), counts


def _tensors(lists: pa.Array) -> list[torch.Tensor | None]:
    values, counts = _values(lists)
    parts: list[torch.Tensor | None] = list(torch.from_numpy(values).split(counts.tolist()))
    if lists.null_count:
        there = lists.is_valid().to_pylist()
        parts = [part if valid else None for part, valid in zip(parts, there, strict=True)]
    return parts


def _padded(lists: pa.Array, pad: bool | int | float) -> torch.Tensor:
    values, counts = _values(lists)
    rows = np.full((len(counts), int(counts.max(initial=0))), pad, values.dtype)
    rows[np.arange(rows.shape[1]) < counts[:, None]] = values
    return torch.from_numpy(rows)
