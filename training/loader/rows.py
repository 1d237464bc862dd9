"""Holds the rows of a split, and gathers any of them into batches of the columns of `train.batch`.

`AllRows` has all of them, in memory or in mapped files; `StreamedRows` reads blocks of the shards on demand and keeps
the latest. Both gather the same rows, into memory that is reused from batch to batch. Columns say how each is decoded
from a shard, and what it becomes in a batch.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec.train import LENGTH
from training.formats import Shards
from training.formats.schema import pick, tensor_of
from training.order import blocks_of

BatchSpec = list[str | list[str]] | dict[str, str | list[str]] | None
Gathered = list[NDArray[Any] | torch.Tensor | pa.Array]
# Blocks that are read and decoded in parallel; PyArrow and NumPy release the interpreter lock meanwhile.
READERS = 2
NO_ROWS = np.empty(0, np.int64)
# Two threads share gathers of at least this many bytes: one alone does not fill the memory's bandwidth.
LARGE = 2**20


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
        np.stack(arrays, axis=1, out=out, casting="unsafe")

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


def columns_of(schema: pa.Schema, batch: BatchSpec, pad: Mapping[str, Any]) -> tuple[list[Any] | None, list[Column]]:
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


def _column(schema: pa.Schema, entry: str | list[str], pad: Mapping[str, Any]) -> Column:
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


class AllRows:
    """All rows in arrays, (num_rows, *shape) each, and in one Arrow array per shard where rows vary in length.

    Attributes:
        spent: seconds so far, by what was done.
        chunk_bytes: bytes to gather at a time, so that the cost of handing over to other threads does not count.
    """

    # With 4 MiB an epoch took a sixth to a quarter longer, with 1 MiB twice as long.
    chunk_bytes = 2**24

    def __init__(self, columns: list[Column], shard_rows: list[int], values: list[Any], where: str) -> None:
        self.num_rows = sum(shard_rows)
        self.spent: dict[str, float] = defaultdict(float)
        self._columns, self._values, self._where = columns, values, where
        self._starts = np.cumsum([0, *shard_rows])
        self._memory = BufferPool()

    def gather(self, rows: NDArray[np.int64], pin: bool = False, soon: NDArray[np.int64] = NO_ROWS) -> Gathered:
        """These rows, column by column, in memory of their own; on request pinned, as tensors.

        Args:
            rows: (n,), in any order.
            soon: rows, (m,), whose neighbours are asked for next, so that they may be read meanwhile.
        """
        since = time.perf_counter()
        gathered: Gathered = []
        for column, values in zip(self._columns, self._values, strict=True):
            if isinstance(column, Fixed):
                take = self._memory.take_pinned if pin else self._memory.take
                gathered.append(take(values, rows))
            else:
                gathered.append(_take_varying(values, self._starts, rows))
        self.spent[self._where] += time.perf_counter() - since
        return gathered


def hold(columns: list[Column], shards: Shards) -> AllRows:
    """Decode all rows into memory, shard by shard."""
    values: list[Any] = [
        np.empty((shards.num_rows, *column.shape), column.dtype) if isinstance(column, Fixed) else []
        for column in columns
    ]
    at = 0
    for number, rows in enumerate(shards.rows):
        for place, joined in _decoded(columns, shards, number, 0, rows, values, at):
            values[place].append(joined)
        at += rows
    return AllRows(columns, shards.rows, values, "memory")


def _decoded(
    columns: list[Column], shards: Shards, number: int, start: int, stop: int, fixed: list[Any], at: int
) -> list[tuple[int, pa.Array]]:
    """Write the fixed columns of rows `start` to `stop` of a shard into `fixed`, from row `at` on; returns the rows of
    the other columns, each with the column's place.
    """
    varying: list[list[pa.Array]] = [[] for _ in columns]
    for table in shards.tables(number, names_of(columns), start, stop):
        for place, column in enumerate(columns):
            if isinstance(column, Fixed):
                column.decode(table, fixed[place][at : at + table.num_rows])
            else:
                varying[place].append(column.decode(table))
        at += table.num_rows
    return [
        (place, _joined(varying[place], column, shards))
        for place, column in enumerate(columns)
        if isinstance(column, Varying)
    ]


class StreamedRows:
    """Blocks of the shards, decoded when one of their rows is asked for; the latest `most_blocks` are kept.

    With the block order a window's blocks are asked for together and never again, so each is decoded once an epoch.
    """

    # A larger chunk would reach over many windows, and no window would be read ahead.
    chunk_bytes = 2**22

    def __init__(self, columns: list[Column], shards: Shards, block_rows: int, memory_bytes: int, least: int) -> None:
        """Raises UsageError if `least` blocks do not fit `memory_bytes`."""
        self._starts, self._lengths = blocks_of(shards.rows, block_rows)
        longest = int(self._lengths.max(initial=1))
        block_bytes = max(1, round(row_bytes(columns, shards) * longest))
        most = min(len(self._starts), memory_bytes // block_bytes)
        if most < min(least, len(self._starts)):
            raise UsageError(
                f"train.loader.memory_bytes {memory_bytes:,} does not hold {least} blocks of {longest:,} rows "
                f"(about {least * block_bytes:,} bytes), the least that reading from the shards needs.",
                remedy="Raise it, or lower train.loader.window_blocks or block_rows, which changes the order.",
            )
        self.num_rows = shards.num_rows
        self.spent = shards.spent
        self._columns, self._shards, self._size = columns, shards, longest
        self._shard_of = np.repeat(np.arange(len(shards)), [-(-rows // block_rows) for rows in shards.rows])
        self._shard_starts = np.cumsum([0, *shards.rows])
        # One place per kept block: fixed columns side by side in one array, the others as they are.
        self._pool: list[Any] = [
            np.empty((most * longest, *column.shape), column.dtype)
            if isinstance(column, Fixed)
            else [pa.array([])] * most
            for column in columns
        ]
        self._places: OrderedDict[int, int] = OrderedDict()
        self._place_of = np.zeros(len(self._starts), np.int64)
        self._free = list(range(most))
        self._pool_bounds = np.arange(most + 1) * longest
        self._reading: dict[int, Future[None]] = {}
        self._memory = BufferPool()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="blocks")

    def gather(self, rows: NDArray[np.int64], pin: bool = False, soon: NDArray[np.int64] = NO_ROWS) -> Gathered:
        """These rows. Their blocks are read first and replace the least recently used.

        The blocks that are needed soon are read while these rows are gathered, if there is room for both.
        """
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        gathered: list[Gathered] = []
        asked = np.zeros(len(self._starts), bool)
        asked[blocks] = True
        needed = np.flatnonzero(asked)
        most = len(self._pool_bounds) - 1
        # More blocks than there is room for: gathered in parts, and put back in order at the end.
        for at in range(0, len(needed), most):
            part = needed[at : at + most]
            inside = np.flatnonzero(np.isin(blocks, part)) if len(needed) > most else np.arange(len(rows))
            self._load(part)
            if at + most >= len(needed):
                for block in (np.searchsorted(self._starts, soon, side="right") - 1).tolist():
                    self._begin(block, part)
            gathered.append([inside, *self._gather(rows[inside], blocks[inside], pin and len(needed) <= most)])
        if len(gathered) == 1:
            return gathered[0][1:]
        back = np.argsort(np.concatenate([part[0] for part in gathered]))
        joined = [list(parts) for parts in zip(*(part[1:] for part in gathered), strict=True)]
        return [
            np.concatenate(parts)[back] if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts).take(back)
            for parts in joined
        ]

    def _load(self, needed: NDArray[np.int64]) -> None:
        """Wait until these blocks are loaded; blocks that no thread has begun to read are read now."""
        for block in needed.tolist():
            if block in self._places:
                self._places.move_to_end(block)
        for block in needed.tolist():
            if not self._begin(block, needed):
                unasked = next(one for one in self._places if one not in needed)
                wait([self._reading.pop(unasked)])
                self._begin(block, needed)
        failed: list[BaseException] = []
        for block in needed.tolist():
            reading = self._reading.pop(block, None)
            error = reading.exception() if reading is not None else None
            if error is not None:
                failed.append(error)
                self._free.append(self._places.pop(block))
        if failed:
            raise failed[0]

    def _begin(self, block: int, needed: NDArray[np.int64]) -> bool:
        """Begin to read a block that is not loaded; False if all places are `needed` or being read into."""
        if block in self._places:
            return True
        if not self._free:
            oldest = next((one for one in self._places if one not in needed and one not in self._reading), None)
            if oldest is None:
                return False
            self._free.append(self._places.pop(oldest))
        place = self._free.pop()
        self._places[block] = self._place_of[block] = place
        self._reading[block] = self._readers.submit(self._read, block, place)
        return True

    def _gather(self, rows: NDArray[np.int64], blocks: NDArray[np.int64], pin: bool) -> Gathered:
        since = time.perf_counter()
        local = self._place_of[blocks] * self._size + (rows - self._starts[blocks])
        take = self._memory.take_pinned if pin else self._memory.take
        gathered: Gathered = [
            take(pool, local) if isinstance(column, Fixed) else _take_varying(pool, self._pool_bounds, local)
            for column, pool in zip(self._columns, self._pool, strict=True)
        ]
        self.spent["memory"] += time.perf_counter() - since
        return gathered

    def _read(self, block: int, place: int) -> None:
        shard = int(self._shard_of[block])
        start = int(self._starts[block] - self._shard_starts[shard])
        stop, at = start + int(self._lengths[block]), place * self._size
        for index, joined in _decoded(self._columns, self._shards, shard, start, stop, self._pool, at):
            self._pool[index][place] = joined


Rows = AllRows | StreamedRows


def row_bytes(columns: list[Column], shards: Shards) -> float:
    """Bytes of a decoded row: exact for fixed columns; for the others an upper estimate from the shards."""
    fixed = sum(column.row_bytes for column in columns if isinstance(column, Fixed))
    varies = any(isinstance(column, Varying) for column in columns)
    return fixed + (shards.num_bytes / max(1, shards.num_rows) if varies else 0.0)


def _take_varying(parts: list[pa.Array], starts: NDArray[np.int64], rows: NDArray[np.int64]) -> pa.Array:
    """Rows of consecutive arrays; `starts` has the first row of each.

    Arrow's own `take` on a chunked array joins all chunks first, each time.
    """
    part = np.searchsorted(starts, rows, side="right") - 1
    order = np.argsort(part, kind="stable")
    numbers, firsts = np.unique(part[order], return_index=True)
    pieces = [
        parts[number].take(pa.array(rows[places] - starts[number]))
        for number, places in zip(numbers, np.split(order, firsts[1:]), strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(pieces).take(pa.array(back)) if pieces else parts[0][:0]


def _joined(parts: list[pa.Array], column: Varying, shards: Shards) -> pa.Array:
    if not parts:
        return pa.array([], shards.schema.field(column.columns[0]).type)
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowInvalid as error:  # its offsets have 32 bits
        raise UsageError(
            f"Column {column.columns[0]!r} has more than 2 GiB in one shard, which cannot be held.",
            remedy="Lower shards.target_size_bytes.",
        ) from error


class BufferPool:
    """Memory that batches are gathered into; a block is reused once no batch in it is alive.

    Fresh memory costs as much as the copy into it: the system clears each page when it is first touched.
    """

    def __init__(self) -> None:
        self._released: list[NDArray[Any]] = []
        self._lock = threading.Lock()
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="gather")

    def take(self, values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """`values[rows]`, (rows, *shape), in memory that nothing else uses."""
        needed = len(rows) * values[:1].nbytes
        out = self._of(needed)[:needed].view(values.dtype).reshape(len(rows), *values.shape[1:])
        self._gather(values, rows, out)
        return out

    def take_pinned(self, values: NDArray[Any], rows: NDArray[np.int64]) -> torch.Tensor:
        """The same in pinned memory, from which a GPU copies while it computes.

        PyTorch itself reuses this memory once the copies from it have ended. It learns of a copy from the storage of
        the tensor that is copied: of a batch that came by way of NumPy, it would know only the first in the memory.
        """
        dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
        out = torch.empty((len(rows), *values.shape[1:]), dtype=dtype, pin_memory=True)
        self._gather(values, rows, out.numpy())
        return out

    def _gather(self, values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        middle = len(rows) // 2 if out.nbytes >= LARGE else 0
        # The rows are in range by construction; mode="raise" would gather into a buffer first.
        first = self._helper.submit(np.take, values, rows[:middle], 0, out[:middle], "clip") if middle else None
        np.take(values, rows[middle:], axis=0, out=out[middle:], mode="clip")
        if first is not None:
            first.result()

    def _of(self, needed: int) -> NDArray[Any]:
        """`needed` bytes of a released block, or of a new one; the block is released with the last view."""
        with self._lock:
            newest_first = reversed(range(len(self._released)))
            large = next((at for at in newest_first if self._released[at].nbytes >= needed), None)
            if large is None:
                self._released.clear()
            block = np.empty(needed, np.uint8) if large is None else self._released.pop(large)
        # Each view references this array, because its memory is not NumPy's own.
        lent = np.frombuffer(block.data, np.uint8)
        # Without a lock: it runs wherever the last view ends, possibly in the middle of the lines above.
        weakref.finalize(lent, self._released.append, block).atexit = False
        return lent
