"""Shard formats: each module holds the writer and the reader of one format side by side, under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa

from infra.store.store import SealedFile

# A file, which is trusted, or one that was hashed; then no byte is used that was not.
Shard = Path | SealedFile


class Format(Protocol):
    """The functions of a format's module."""

    SUFFIX: str

    def refuse(self, table: pa.Table) -> None:
        """Raise UsageError, naming column and reason, if the format cannot hold these rows as they are."""

    def encode(self, table: pa.Table) -> Iterator[memoryview]:
        """The bytes of a file with normalised rows, each piece valid until the next; the same rows give the same bytes
        however they are chunked.
        """

    def write_shard(self, table: pa.Table, path: Path) -> None:
        """Write what `encode` gives to a new file."""

    def read_shard(self, path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        """The rows of a file, in order, with exactly the schema's fields; CorruptError naming file and place."""

    def read_blocks(
        self, path: Shard, schema: pa.Schema, columns: list[str] | None = None, start: int = 0
    ) -> Iterator[pa.Table]:
        """The rows of `read_shard` from row `start` on, a bounded number of rows and bytes at a time, never an empty
        block.
        """

    def num_rows(self, path: Path) -> int:
        """The number of rows in a file; CorruptError naming file and place."""


def get(name: str) -> Format:
    """The format called `name`: `parquet` or `tfrecord`."""
    if name not in ("parquet", "tfrecord"):
        raise ValueError(f"unknown shard format {name!r}")
    return cast(Format, import_module(f"training.formats.{name}"))
