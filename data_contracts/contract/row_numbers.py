"""Numbers of rows where some rows are left out: which rows stay, and what number a row that stays had before."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def among(numbers: Numbers, first: int, rows: int) -> Numbers:
    """Those of sorted row numbers that are `first` to `first + rows - 1`, counted from `first`."""
    start, stop = np.searchsorted(numbers, [first, first + rows])
    return numbers[start:stop] - first


def without_rows(batch: pa.RecordBatch, first: int, left_out: Numbers) -> pa.RecordBatch:
    """A batch, whose first row has the number `first`, without the rows of these numbers (sorted)."""
    gone = among(left_out, first, batch.num_rows)
    if not len(gone):
        return batch
    stays = np.ones(batch.num_rows, bool)
    stays[gone] = False
    return batch.filter(pa.array(stays))


def number_before(row: int, left_out: Numbers) -> int:
    """The number that a row had before these rows (sorted numbers) were left out."""
    # Before each of the left out rows so many rows stay: a row comes after it if its own number is at least that.
    return row + int(np.searchsorted(left_out - np.arange(len(left_out)), row, "right"))
