"""The rows of the data that is checked: as Arrow batches, and as open Parquet files where that is what they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

Read = Callable[[list[str] | None], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files whose digests were checked, for DuckDB to read.

    Attributes:
        paths: of open files, so that the bytes behind a path stay those that were checked.
        first_rows: number of each file's first row.
        constants: columns that have one value in all rows of a file, and this value of each file as text, or None.
    """

    paths: tuple[str, ...]
    first_rows: tuple[int, ...]
    constants: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)


Files = Callable[[], contextlib.AbstractContextManager[ParquetFiles | None]]


def no_files() -> contextlib.AbstractContextManager[ParquetFiles | None]:
    """There are no files that DuckDB could read."""
    return contextlib.nullcontext()


@dataclass(frozen=True)
class Data:
    """The data that is scanned.

    Attributes:
        schema: of all columns.
        read: gives the batches, the same rows in the same order each time; with names, only these columns.
        files: opens the same rows as Parquet files; None if that is not what they are.
    """

    schema: pa.Schema
    read: Read
    files: Files = no_files
