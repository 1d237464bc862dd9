"""Profiles one part of the data, such as a file, from its batches."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Generator, Iterable
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
    part = _Part([Column(field.name, field.type, field.name in sensitive, block) for field in schema], batches)
    threads = threads or os.cpu_count() or 1
    _keep_freed_memory()
    with ThreadPoolExecutor(threads, "profile") as pool:
        try:
            for done in [pool.submit(part.count) for _ in range(threads)]:
                done.result()
        except BaseException:
            part.stop()  # else an interrupted process would read all batches first
            raise
        return Profile(rows=part.rows, columns=list(pool.map(Column.record, part.columns)))


class _Part:
    """The columns of a part, and what is left of its batches; several threads count them.

    No thread waits for the end of a batch. A column is locked while it is handed out, so the next batch's values of
    the column are counted after those before.
    """

    def __init__(self, columns: list[Column], batches: Iterable[pa.RecordBatch]) -> None:
        self.rows, self.columns = 0, columns
        self._locks = [threading.Lock() for _ in columns]
        self._left, self._handing_out = self._arrays(batches), threading.Lock()

    def _arrays(self, batches: Iterable[pa.RecordBatch]) -> Generator[tuple[int, pa.Array]]:
        for batch in batches:
            self.rows += batch.num_rows
            yield from enumerate(batch.columns)

    def count(self) -> None:
        """Count the values that are left; after an error, no thread goes on."""
        while (given := self._next()) is not None:
            at, values = given
            try:
                self.columns[at].add(values)
            except BaseException:
                self._locks[at].release()
                self.stop()
                raise
            self._locks[at].release()

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._handing_out:
            self._left.close()

    def _next(self) -> tuple[int, pa.Array] | None:
        """The place of a column, which is locked now, and values of it."""
        with self._handing_out:
            given = next(self._left, None)
            if given is not None:
                self._locks[given[0]].acquire()
            return given


def _keep_freed_memory() -> None:
    """Have glibc keep up to 8 MiB that are freed: giving each array back and getting it anew costs more than the work.

    Freeing a larger block raises the size from which memory is given back at once (mallopt(3), M_MMAP_THRESHOLD).
    """
    np.empty(1 << 22, np.uint8)
