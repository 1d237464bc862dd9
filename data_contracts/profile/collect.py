"""Profiles one part of the data, such as a file, from its batches."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from data_contracts.profile.columns import Column
from data_contracts.profile.moments import block_of
from data_contracts.profile.record import Profile


def profile_of(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, sensitive: Collection[str], threads: int | None = None
) -> Profile:
    """The profile of one part, such as a file.

    Args:
        batches: its rows, in batches of any sizes.
        schema: of all batches.
        sensitive: columns of which only rows and nulls are counted.
        threads: columns that are counted at once; default: one per processor. It does not affect the result.
    """
    block = block_of(len(schema))
    columns = [Column(field.name, field.type, field.name in sensitive, block) for field in schema]
    rows, threads = 0, threads or os.cpu_count() or 1
    _keep_freed_memory()
    with ThreadPoolExecutor(threads, "profile") as pool:
        for batch in batches:
            rows += batch.num_rows
            left = iter(list(zip(columns, batch.columns, strict=True)))
            list(pool.map(_add, [left] * threads))
        return Profile(rows=rows, columns=list(pool.map(Column.record, columns)))


def _add(left: Iterator[tuple[Column, pa.Array]]) -> None:
    """Count the columns that are left; several threads take them from one iterator."""
    for column, values in left:
        column.add(values)


def _keep_freed_memory() -> None:
    """Have glibc keep up to 8 MiB that are freed: giving each array back and getting it anew costs more than the work.

    Freeing a larger block raises the size from which memory is given back at once (mallopt(3), M_MMAP_THRESHOLD).
    """
    np.empty(1 << 22, np.uint8)
