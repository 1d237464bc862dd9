"""Turns files into windows of bytes, the tokens of the model: a plain function from record batch to record batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def to_windows(batch: pa.RecordBatch, length: int = 129) -> pa.RecordBatch:
    """Cut each file (column `bytes`) into windows of `length` bytes, column `tokens`.

    Neighbours share one byte, so that each byte but a file's first is predicted. The last window of a file ends with
    the file, so all are full; a file shorter than one window gives none.
    """
    windows = [
        np.frombuffer(text, np.uint8)[start : start + length]
        for text in batch.column("bytes").to_pylist()
        for start in window_starts(len(text), length)
    ]
    values = np.concatenate(windows) if windows else np.empty(0, np.uint8)
    offsets = np.arange(len(windows) + 1, dtype=np.int32) * length
    return pa.record_batch({"tokens": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})


def window_starts(size: int, length: int) -> list[int]:
    """Where the windows of a file of `size` bytes begin."""
    if size < length:
        return []
    starts = list(range(0, size - length + 1, length - 1))
    last = size - length
    return starts if starts[-1] == last else [*starts, last]
