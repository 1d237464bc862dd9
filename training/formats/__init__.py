"""Shard formats, and the shards of one split: where they are, whether they are what was sealed, their rows as tables.

Each module of a format holds its writer and its reader side by side, under the same names.
"""

from __future__ import annotations

import errno
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.handoffs import Dataset, ShardFile
from data_contracts.quoting import rows_shown
from infra.store.store import SealedFile
from training.formats.schema import read_schema

# A file, which is trusted, or one that was hashed; then no byte is used that was not.
Shard = Path | SealedFile


class Format(Protocol):
    """The functions of a format's module."""

    SUFFIX: str

    def refuse(self, table: pa.Table) -> None:
        """Raise UsageError, naming column and reason, if the format cannot hold these rows as they are."""

    def encode(self, table: pa.Table) -> Iterator[memoryview]:
        """The bytes of a file with normalised rows, each chunk valid until the next; the same rows give the same bytes
        however they are chunked.
        """

    def read_blocks(
        self, path: Shard, schema: pa.Schema, columns: list[str] | None = None, start: int = 0
    ) -> Iterator[pa.Table]:
        """The rows of a file from row `start` on, in order, with exactly the schema's fields: a bounded number of rows
        and bytes at a time, never an empty block; CorruptError naming file and place.
        """


def get(name: str) -> Format:
    """The format called `name`: `parquet` or `tfrecord`."""
    return cast(Format, import_module(f"training.formats.{name}"))


def write_shard(format_name: str, table: pa.Table, path: Path) -> None:
    """Write the normalised rows to a new file."""
    with path.open("wb") as file:
        file.writelines(get(format_name).encode(table))


def shard_path(folder: Path, dataset: Dataset, shard: ShardFile) -> Path:
    """A shard's path, given the dataset's local folder; a parent's shard lies beside that folder."""
    if shard.uri in ("", dataset.ref.uri):
        return folder / shard.path
    root = folder
    for _ in Path(dataset.ref.uri).parts:
        root = root.parent
    return root / shard.uri / shard.path


class Shards:
    """The shards of one split. Each is checked against its digest once, at its first use.

    Attributes:
        rows: rows of each shard; num_rows: of all.
        spent: seconds so far, by what was done: `reading` (and hashing) or `decoding`.
    """

    def __init__(self, folder: Path, dataset: Dataset, split: str) -> None:
        """Raises UsageError if there is no such split, CorruptError naming a shard that is missing or extra."""
        shards = dataset.splits.get(split)
        if not shards:
            raise UsageError(
                f"The dataset has no split {split!r}; it has {', '.join(dataset.splits)}.",
                remedy="Name one of these, or change shards.split.",
            )
        self.split = split
        self.digests = [shard.blake3 for shard in shards]
        self.rows = [shard.rows for shard in shards]
        self.num_rows = sum(self.rows)
        self.num_bytes = sum(shard.bytes for shard in shards)
        self.spent: dict[str, float] = defaultdict(float)
        self._shards = shards
        self._paths = [shard_path(folder, dataset, shard) for shard in shards]
        self._format = get(dataset.format)
        self._checked: dict[int, SealedFile] = {}
        self._refuse_strangers(folder, dataset)
        try:
            self.schema = read_schema(folder)
        except FileNotFoundError as error:
            raise CorruptError(f"The dataset in {folder} has no schema.json.") from error

    def __len__(self) -> int:
        return len(self.rows)

    def in_words(self, start: int, stop: int) -> str:
        """Where rows START to STOP of the split are, in words: the shards' files, and the numbers in them."""
        places, at = [], 0
        for path, rows in zip(self._paths, self.rows, strict=True):
            if start < at + rows and at < stop:
                places.append((path.name, max(start - at, 0), min(stop - at, rows) - 1))
            at += rows
        return rows_shown(places)

    def tables(self, number: int, columns: list[str], start: int = 0, stop: int | None = None) -> Iterator[pa.Table]:
        """Rows `start` to `stop` of shard `number`, a bounded number at a time.

        Raises:
            CorruptError: its bytes are not what was sealed, or not what the schema says.
            StorageUnavailable: the disk cannot read them.
        """
        stop = self.rows[number] if stop is None else stop
        path, at, sealed = self._paths[number], start, self._check(number)
        with self._time("decoding"), _named(path):
            for block in self._format.read_blocks(sealed, self.schema, columns, start) if at < stop else ():
                yield block.slice(0, stop - at)
                at += block.num_rows
                if at >= stop:
                    break
        if at < stop:
            raise CorruptError(f"Shard {path.name} has {at} rows, but the dataset says {self.rows[number]}.")

    def _check(self, number: int) -> SealedFile:
        if number not in self._checked:
            shard, path = self._shards[number], self._paths[number]
            with self._time("reading"), _named(path):
                if path.stat().st_size != shard.bytes:
                    raise CorruptError(
                        f"Shard {path.name} has {path.stat().st_size} bytes, but {shard.bytes} were sealed."
                    )
                self._checked[number] = SealedFile(path, shard.bytes, shard.blake3, f"Shard {path.name}")
        return self._checked[number]

    def _refuse_strangers(self, folder: Path, dataset: Dataset) -> None:
        for path in self._paths:
            if not path.exists():
                raise CorruptError(f"Shard {path.name} is missing.")
        known = {shard_path(folder, dataset, one) for shards in dataset.splits.values() for one in shards}
        for path in sorted(folder.glob(f"*{self._format.SUFFIX}")):
            if path not in known:
                raise CorruptError(f"Shard {path.name} is extra: the dataset does not name it.")

    @contextmanager
    def _time(self, what: str) -> Iterator[None]:
        since = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] += time.perf_counter() - since


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the shard if the system cannot read its bytes."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptError(f"Shard {path.name} is missing.") from error
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
        raise StorageUnavailable(f"Shard {path.name} could not be read ({reason}: {error.strerror}).") from error
