"""One split of a sealed dataset, ready to give batches of any of its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import LoaderSpec, MixtureSpec
from data_contracts.quoting import shown, text_of
from training.formats.schema import pick
from training.formats.shards import Shards
from training.loader.cache import open_cache, room
from training.loader.columns import BatchSpec, Fixed, columns_of
from training.loader.rows import NO_ROWS, Rows, StreamedRows, hold, row_bytes

Transform = Callable[[Any], Any]
# Rows read at once in stored order; about a row group of Parquet.
IN_ORDER_ROWS = 65_536
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass
class MemoryBudget:
    """Limits for rows: memory of this rank (each split that is held takes a part), and disk of this node."""

    memory_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, loader: LoaderSpec, local_ranks: int = 1) -> MemoryBudget:
        """The share of one of a node's ranks, by the spec."""
        whole = _free_memory() // 2 if loader.memory_bytes is None else loader.memory_bytes
        return cls(whole // local_ranks, room(loader.cache_bytes))

    def take_memory(self, num_bytes: int) -> bool:
        """Reserve `num_bytes` of memory; returns whether there was enough."""
        if num_bytes > self.memory_bytes:
            return False
        self.memory_bytes -= num_bytes
        return True


class Split:
    """The rows of one split: in memory if there is room, else in files of columns on the node's disk, else in shards.

    Attributes:
        num_rows: rows in it; shard_rows: in each of its shards.
        in_words: says where rows START to STOP are.
        kinds: with a mixture, the rows of each kind that has a weight.
        spent: seconds of gathering so far, by cause: `memory`, `cache`, `reading`, `decoding` or `transform`.
    """

    def __init__(
        self,
        shards: Shards,
        batch: BatchSpec = None,
        transform: Transform | None = None,
        loader: LoaderSpec | None = None,
        room: MemoryBudget | None = None,
        *,
        parts: Mapping[str, int] | None = None,
        in_order: bool = False,
    ) -> None:
        """Open the split of these shards; each is checked against its digest before its rows are used.

        Args:
            batch: the spec's `train.batch`.
            transform: the user's `train.transform`, applied to every batch; it raises UserCodeError.
            parts: with a mixture of datasets, how many rows each has, in the order in which they follow each other.
            in_order: rows are asked for as they are stored, so they may be read from the shards at any size.

        Raises:
            UsageError: no such column, a column that a tensor cannot hold, or too little room for the order.
            CorruptError: a shard is not what was sealed. StorageUnavailable: a disk is full or fails.
        """
        loader = loader or LoaderSpec()
        room = room or MemoryBudget.of(loader)
        self.num_rows, self.shard_rows = shards.num_rows, shards.rows
        self.in_words = shards.in_words
        self._keys, self._columns = columns_of(shards.schema, batch, loader.pad)
        self.row_bytes = row_bytes(self._columns, shards)
        self._transform = transform
        self.kinds = None
        if loader.mixture is not None and not in_order:
            self.kinds = parts_of(loader.mixture, parts) if parts else kinds_of(shards, loader.mixture)
        self._rows = self._open(shards, loader, room, in_order)
        # The loader's thread reads ahead while a hook of the user's may read, too.
        self._reading = threading.Lock()
        self.spent = self._rows.spent
        self.chunk_bytes = self._rows.chunk_bytes

    def epoch_rows(self, global_batch: int) -> int:
        """Rows of an epoch: all; of a mixture, which continues from epoch to epoch, whole batches."""
        if self.kinds is None:
            return self.num_rows
        rows = sum(map(len, self.kinds.values()))
        return rows - rows % global_batch if rows >= global_batch else rows

    def take(self, rows: NDArray[np.int64] | slice) -> Any:
        """The batch of these rows, (n,): a tuple or dictionary as `train.batch` says, after the user's transform.

        Numbers are tensors of their own dtype (float64 becomes float32, torch's default), times integers of their unit,
        texts and bytes lists, lists of numbers a list of tensors or one padded tensor.
        """
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.num_rows))
        return self.transformed(self.batches(rows, len(rows))[0][0])

    def batches(
        self, rows: NDArray[np.int64], size: int, pin: bool = False, soon: NDArray[np.int64] = NO_ROWS
    ) -> tuple[list[Any], int]:
        """Batches of `size` of these rows, (n,), not yet transformed, and the bytes they take.

        Args:
            soon: as in `Rows.gather`.
        """
        with self._reading:
            gathered = self._rows.gather(rows, pin, soon)
        columns = [column.batches(values, size) for column, values in zip(self._columns, gathered, strict=True)]
        made = list(zip(*columns, strict=True))
        batches = made if self._keys is None else [dict(zip(self._keys, one, strict=True)) for one in made]
        return batches, sum(values.nbytes for values in gathered)

    def without_numbers(self, rows: NDArray[np.int64]) -> dict[str, int]:
        """Float columns with a missing, NaN or infinite value in these rows, (n,): column → number of such rows.

        Empty where a transform may fill such values. Not to be called while another thread reads.
        """
        if self._transform is not None:
            return {}
        found: dict[str, int] = {}
        for column, values in zip(self._columns, self._rows.gather(rows), strict=True):
            if isinstance(column, Fixed) and column.dtype.kind == "f":
                each = np.isfinite(values).reshape(len(rows), len(column.columns), -1).all(axis=2)
                counts = len(rows) - each.sum(axis=0)
                found |= {name: int(n) for name, n in zip(column.columns, counts, strict=True) if n}
        return found

    def transformed(self, batch: Any) -> Any:
        """The batch after the user's transform.

        Called where the batch is handed over, not ahead of it: a transform may draw random numbers, whose order a
        resumed run repeats.
        """
        if self._transform is None:
            return batch
        since = time.perf_counter()
        batch = self._transform(batch)
        self.spent["transform"] += time.perf_counter() - since
        return batch

    def _open(self, shards: Shards, loader: LoaderSpec, room: MemoryBudget, in_order: bool) -> Rows:
        whole = round(self.row_bytes * shards.num_rows)
        if room.take_memory(whole):
            return hold(self._columns, shards)
        held = open_cache(self._columns, shards, room.cache_bytes)
        if held is not None:
            return held
        if loader.shuffle == "global" and not in_order:
            raise UsageError(
                f"The rows of split {shards.split} take about {whole:,} bytes, more than a rank's memory "
                f"({room.memory_bytes:,}) and the node's cache ({room.cache_bytes:,}), so they cannot be shuffled "
                "globally.",
                remedy="Raise train.loader.memory_bytes or cache_bytes, or set train.loader.shuffle: block.",
            )
        # Two windows: a chunk of batches may begin in one and end in the next.
        least = 1 if in_order else 2 * loader.window
        block_rows = IN_ORDER_ROWS if in_order else loader.block_rows or max(shards.rows)
        return StreamedRows(self._columns, shards, block_rows, room.memory_bytes, least)


def stored_order(train: Mapping[str, Any]) -> LoaderSpec:
    """The setting for reading in stored order, taken from a training's sealed settings: the padding alone."""
    return LoaderSpec(pad=(train.get("loader") or {}).get("pad", {}))  # older trainings have no loader


def parts_of(mixture: MixtureSpec, parts: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """The rows, (n,), of each dataset that has a weight; the datasets follow each other."""
    ends = np.cumsum(list(parts.values()))
    return {
        name: np.arange(end - parts[name], end)
        for name, end in zip(parts, ends.tolist(), strict=True)
        if mixture.weights[name]
    }


def kinds_of(shards: Shards, mixture: MixtureSpec) -> dict[str, NDArray[np.int64]]:
    """The rows, (n,), of each kind that has a weight; UsageError for a kind without rows, or rows without a weight."""
    assert mixture.column is not None, "the spec has either a column or datasets"
    pick(shards.schema, [mixture.column])
    tables = [table for number in range(len(shards)) for table in shards.tables(number, [mixture.column])]
    try:
        values = pa.concat_tables(tables).column(0).cast(pa.string()).combine_chunks()
    except pa.ArrowException as error:
        raise UsageError(
            f"train.loader.mixture.column: {mixture.column!r} does not hold kinds: {text_of(error)}.",
            remedy="Name a column of texts or whole numbers.",
        ) from error
    rows = {name: pc.indices_nonzero(pc.equal(values, name)).to_numpy().astype(np.int64) for name in mixture.weights}
    for name, found in rows.items():
        if not len(found):
            raise UsageError(
                f"train.loader.mixture.weights: split {shards.split} has no row with {mixture.column} {name!r}.",
                remedy="Leave it out.",
            )
    others = pc.unique(values.filter(pc.invert(pc.is_in(values, pa.array(list(rows)))))).to_pylist()
    if others:
        raise UsageError(
            f"train.loader.mixture.weights: rows with {mixture.column} {shown(others[0])} have no weight.",
            remedy="Give them one; 0 leaves them out.",
        )
    return {name: found for name, found in rows.items() if mixture.weights[name]}


def _free_memory() -> int:
    """Memory that this process may still take, in bytes."""
    free = psutil.virtual_memory().available
    for path in _LIMITS:
        try:
            free = min(free, int(Path(path).read_text()))
        except (OSError, ValueError):  # no such limit, or `max`
            continue
    return free
