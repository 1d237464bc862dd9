"""One split of a sealed dataset, ready to give batches of any of its rows.

Where memory is too small, decoded rows are files of columns on disk, made once per node and mapped by all its ranks:

    <state>/columns/<key>/         files of one split, `layout.json` with their sizes and digests last; locked in use
    <state>/columns/<key>.making   locked while they are checked and made, so that one rank makes them and others wait

A folder that no process maps is deleted to make room, the least recently used first.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.canonical import digest
from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.pipeline_spec import LoaderSpec, MixtureSpec
from data_contracts.quoting import shown, text_of
from infra import files
from infra.gang.rank_files import SCRATCH
from infra.machine import free_bytes
from infra.settings import state_folder
from training.formats import Shards
from training.formats.schema import pick
from training.loader.rows import (
    NO_ROWS,
    AllRows,
    BatchSpec,
    Column,
    Fixed,
    Rows,
    StreamedRows,
    columns_of,
    hold,
    names_of,
    row_bytes,
)

Transform = Callable[[Any], Any]
# Rows read at once in stored order; about a row group of Parquet.
IN_ORDER_ROWS = 65_536
VERSION = 1
LAYOUT = "layout.json"
CHECKED = "checked"


@dataclass
class MemoryBudget:
    """Limits for rows: memory of this rank (each split that is held takes a part), and disk of this node."""

    memory_bytes: int
    cache_bytes: int

    @classmethod
    def of(cls, loader: LoaderSpec, local_ranks: int = 1) -> MemoryBudget:
        """The share of one of a node's ranks, by the spec; by default, of half of what is free."""
        whole = free_bytes() // 2 if loader.memory_bytes is None else loader.memory_bytes
        disk = loader.cache_bytes
        return cls(whole // local_ranks, shutil.disk_usage(state_folder()).free // 2 if disk is None else disk)

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
        return self.transformed(self.batches(rows, len(rows))[0])

    def batches(
        self, rows: NDArray[np.int64], size: int, pin: bool = False, soon: NDArray[np.int64] = NO_ROWS
    ) -> list[Any]:
        """Batches of `size` of these rows, (n,), not yet transformed.

        Args:
            soon: as in `AllRows.gather`.
        """
        with self._reading:
            gathered = self._rows.gather(rows, pin, soon)
        columns = [column.batches(values, size) for column, values in zip(self._columns, gathered, strict=True)]
        made = list(zip(*columns, strict=True))
        return made if self._keys is None else [dict(zip(self._keys, values, strict=True)) for values in made]

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


def open_cache(columns: list[Column], shards: Shards, cache_bytes: int) -> AllRows | None:
    """The rows in mapped files, which are made if they do not exist; None if they do not fit `cache_bytes`.

    Raises:
        StorageUnavailable: the disk is full or fails; CorruptError: a shard is not what was sealed.
    """
    base = state_folder() / "columns"
    base.mkdir(exist_ok=True)
    key = _key(columns, shards)
    folder = base / key
    with files.locked(base / f"{key}.making"):
        using = files.hold(folder)
        if using is not None and not _is_whole(folder):
            os.close(using)
            shutil.rmtree(folder)
            using = None
        while using is None:  # a second time if another rank's deletion removed it
            needed = round(row_bytes(columns, shards) * shards.num_rows)
            if needed > cache_bytes:
                return None
            _make_room(base, cache_bytes - needed)
            _make(folder, columns, shards)
            using = files.hold(folder)
        held = AllRows(columns, shards.rows, _map(folder, columns, shards), "cache")
    weakref.finalize(held, os.close, using)
    return held


def _key(columns: list[Column], shards: Shards) -> str:
    fields = [f"{column!r}" for column in columns]
    types = [f"{shards.schema.field(name).type} {shards.schema.field(name).metadata}" for name in names_of(columns)]
    return digest([VERSION, shards.digests, shards.rows, fields, types])[:40]


def _make(folder: Path, columns: list[Column], shards: Shards) -> None:
    """Decode into a folder with a temporary name, and rename it when every byte is on the disk."""
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    at = "the first shard"
    try:
        layout = {}
        with ExitStack() as opened:
            outs = [_Out(opened.enter_context((draft / f"{place}.bin").open("wb"))) for place in range(len(columns))]
            for number in range(len(shards)):
                at = f"shard {number} of split {shards.split}"
                _decode(shards, number, columns, outs)
            for place, out in enumerate(outs):
                layout[f"{place}.bin"] = {
                    "bytes": out.file.tell(),
                    "blake3": out.hasher.hexdigest(),
                    "ends": out.ends,
                }
                _sync(out.file)
        with (draft / LAYOUT).open("w") as file:
            json.dump(layout, file)
            _sync(file)
        (draft / CHECKED).write_text(_launch())
        os.rename(draft, folder)
    except OSError as error:
        what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"fails ({error.strerror})"
        raise StorageUnavailable(
            f"The disk of the cache {folder.parent} {what}: decoding stopped at {at}.",
            remedy="Free space there, name another folder with TRAINWRIGHT_HOME, or lower train.loader.cache_bytes.",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _decode(shards: Shards, number: int, columns: list[Column], outs: list[_Out]) -> None:
    """Append one shard's rows to the files of their columns."""
    for table in shards.tables(number, names_of(columns)):
        for out, column in zip(outs, columns, strict=True):
            out.write(column, table)
    for out, column in zip(outs, columns, strict=True):
        if not isinstance(column, Fixed):
            out.end_shard(shards.schema.field(column.columns[0]).type)


class _Out:
    """The file of one column: raw values of fixed rows, or one Arrow record batch per shard."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.hasher = files.new_hasher()
        self.ends: list[int] = []
        self._parts: list[pa.Array] = []

    def write(self, column: Column, table: pa.Table) -> None:
        if isinstance(column, Fixed):
            values = np.empty((table.num_rows, *column.shape), column.dtype)
            column.decode(table, values)
            self._append(values.reshape(-1).view(np.uint8).data)
        else:
            self._parts.append(column.decode(table))

    def end_shard(self, kind: pa.DataType) -> None:
        joined = pa.concat_arrays(self._parts) if self._parts else pa.array([], kind)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("rows", kind)])) as writer:
            writer.write_batch(pa.record_batch([joined], names=["rows"]))
        self._append(memoryview(sink.getvalue()))
        self._parts = []
        self.ends.append(self.file.tell())

    def _append(self, data: memoryview) -> None:
        self.file.write(data)
        self.hasher.update(data)


def _map(folder: Path, columns: list[Column], shards: Shards) -> list[Any]:
    layout = json.loads((folder / LAYOUT).read_text())
    values: list[Any] = []
    for place, column in enumerate(columns):
        path = folder / f"{place}.bin"
        if isinstance(column, Fixed):
            shape = (shards.num_rows, *column.shape)
            empty = not layout[path.name]["bytes"]
            values.append(np.empty(shape, column.dtype) if empty else np.memmap(path, column.dtype, "r", shape=shape))
            continue
        whole = pa.py_buffer(np.memmap(path, np.uint8, "r"))
        starts = [0, *layout[path.name]["ends"][:-1]]
        parts = [whole.slice(start, end - start) for start, end in zip(starts, layout[path.name]["ends"], strict=True)]
        values.append([pa.ipc.open_stream(part).read_next_batch().column(0) for part in parts])
    return values


def _is_whole(folder: Path) -> bool:
    """Whether the files hold what was written, checked once per launch; damaged files are made again."""
    checked = folder / CHECKED
    try:
        layout = json.loads((folder / LAYOUT).read_text())
        if checked.exists() and checked.read_text() == _launch():
            return all((folder / name).stat().st_size == one["bytes"] for name, one in layout.items())
        for name, one in layout.items():
            found = files.new_hasher()
            if (folder / name).stat().st_size != one["bytes"]:
                return False
            found = found.update_mmap(folder / name) if one["bytes"] else found
            if found.hexdigest() != one["blake3"]:
                return False
        checked.write_text(_launch())
    except (OSError, ValueError, KeyError):
        return False
    return True


def _launch() -> str:
    """A name that the ranks of one launch on a node share: the folder that they report in."""
    return os.environ.get(SCRATCH) or f"process {os.getpid()}"


def _make_room(base: Path, most_bytes: int) -> None:
    """Delete folders that no process maps, the least recently used first, until the rest takes at most `most_bytes`."""
    found = [path for path in base.iterdir() if path.is_dir() and (path / LAYOUT).exists()]
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in found}
    files.make_room(found, lambda: sum(size for path, size in sizes.items() if path.exists()) <= most_bytes)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
