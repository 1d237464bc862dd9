"""Shard formats: each module holds the writer and the reader of one format side by side, under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pyarrow as pa


class Format(Protocol):
    """What the module of a format offers."""

    SUFFIX: str

    def refuse(self, table: pa.Table) -> None:
        """Raise UsageError, naming column and reason, if the format cannot hold these rows as they are."""

    def write_shard(self, table: pa.Table, path: Path) -> None:
        """Write normalised rows to a new file; the same rows give the same bytes however they are chunked."""

    def read_shard(self, path: Path, schema: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        """The rows of a file, in order, with exactly the schema's fields; CorruptError naming file and place."""

    def read_blocks(
        self, path: Path, schema: pa.Schema, columns: list[str] | None = None, start: int = 0
    ) -> Iterator[pa.Table]:
        """What `read_shard` gives from row `start` on, a bounded number of rows and bytes at a time, none empty."""

    def num_rows(self, path: Path) -> int:
        """How many rows a file has; CorruptError naming file and place."""


def get(name: str) -> Format:
    """The format called `name`: `parquet` or `tfrecord`."""
    if name not in ("parquet", "tfrecord"):
        raise ValueError(f"unknown shard format {name!r}")
    return cast(Format, import_module(f"training.formats.{name}"))
