"""Decoded rows on disk where memory is too small: files of columns, made once per node, mapped by all its ranks.

    <state>/columns/<key>/         files of one split, `layout.json` with their sizes and digests last; locked in use
    <state>/columns/<key>.making   locked while they are checked and made, so that one rank makes them and others wait

A folder that no process maps is deleted to make room, the least recently used first.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from blake3 import blake3

from data_contracts.canonical import digest
from data_contracts.errors import StorageUnavailable
from infra import files
from infra.gang.rank_files import SCRATCH
from infra.settings import state_folder
from training.formats.shards import Shards
from training.loader.columns import Column, Fixed, names_of
from training.loader.rows import AllRows, row_bytes

VERSION = 1
LAYOUT = "layout.json"
CHECKED = "checked"


def room(cache_bytes: int | None) -> int:
    """The most bytes that decoded rows may take on this machine's disk: `cache_bytes`, or half of the free space."""
    return shutil.disk_usage(state_folder()).free // 2 if cache_bytes is None else cache_bytes


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
        try:
            held = AllRows(columns, shards.rows, _map(folder, columns, shards), "cache")
        except BaseException:
            os.close(using)
            raise
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
        files: dict[str, dict[str, Any]] = {}
        with _writing(draft, columns, files) as outs:
            for number in range(len(shards)):
                at = f"shard {number} of split {shards.split}"
                _decode(shards, number, columns, outs)
        (draft / LAYOUT).write_text(json.dumps(files))
        _sync(draft / LAYOUT)
        (draft / CHECKED).write_text(_launch())
        os.rename(draft, folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        what = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"fails ({error.strerror})"
        raise StorageUnavailable(
            f"The disk of the cache {folder.parent} {what}: decoding stopped at {at}.",
            remedy="Free space there, name another folder with TRAINWRIGHT_HOME, or lower train.loader.cache_bytes.",
        ) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = _opened(path)
        self.hasher = blake3(max_threads=blake3.AUTO)
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


@contextmanager
def _writing(folder: Path, columns: list[Column], files: dict[str, dict[str, Any]]) -> Iterator[list[_Out]]:
    outs = [_Out(folder / f"{place}.bin") for place in range(len(columns))]
    try:
        yield outs
        for out in outs:
            out.file.flush()
            os.fsync(out.file.fileno())
            files[out.path.name] = {"bytes": out.file.tell(), "blake3": out.hasher.hexdigest(), "ends": out.ends}
    finally:
        for out in outs:
            out.file.close()


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
            found = blake3(max_threads=blake3.AUTO)
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


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _opened(path: Path) -> BinaryIO:
    return path.open("wb")
