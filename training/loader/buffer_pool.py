"""Memory that batches are gathered into, reused from batch to batch."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# Two threads share gathers of at least this many bytes: one alone does not fill the memory's bandwidth.
LARGE = 2**20


class BufferPool:
    """Memory that batches are gathered into; a block is reused once no batch in it is alive.

    Fresh memory costs as much as the copy into it: the system clears each page when it is first touched.
    """

    def __init__(self) -> None:
        self._released: list[NDArray[Any]] = []
        self._lock = threading.Lock()
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="gather")

    def take(self, values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """`values[rows]`, (rows, *shape), in memory that nothing else uses."""
        needed = len(rows) * values[:1].nbytes
        out = self._of(needed)[:needed].view(values.dtype).reshape(len(rows), *values.shape[1:])
        self._gather(values, rows, out)
        return out

    def take_pinned(self, values: NDArray[Any], rows: NDArray[np.int64]) -> torch.Tensor:
        """The same in pinned memory, from which a GPU copies while it computes.

        PyTorch itself reuses this memory once the copies from it have ended. It learns of a copy from the storage of
        the tensor that is copied: of a batch that came by way of NumPy, it would know only the first in the memory.
        """
        dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
        out = torch.empty((len(rows), *values.shape[1:]), dtype=dtype, pin_memory=True)
        self._gather(values, rows, out.numpy())
        return out

    def _gather(self, values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        middle = len(rows) // 2 if out.nbytes >= LARGE else 0
        # The rows are in range by construction; mode="raise" would gather into a buffer first.
        first = self._helper.submit(np.take, values, rows[:middle], 0, out[:middle], "clip") if middle else None
        np.take(values, rows[middle:], axis=0, out=out[middle:], mode="clip")
        if first is not None:
            first.result()

    def _of(self, needed: int) -> NDArray[Any]:
        """`needed` bytes of a released block, or of a new one; the block is released with the last view."""
        with self._lock:
            newest_first = reversed(range(len(self._released)))
            large = next((at for at in newest_first if self._released[at].nbytes >= needed), None)
            if large is None:
                self._released.clear()
            block = np.empty(needed, np.uint8) if large is None else self._released.pop(large)
        # Each view references this array, because its memory is not NumPy's own.
        lent = np.frombuffer(block.data, np.uint8)
        # Without a lock: it runs wherever the last view ends, possibly in the middle of the lines above.
        weakref.finalize(lent, self._released.append, block).atexit = False
        return lent
