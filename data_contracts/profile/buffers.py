"""Memory for blocks of numbers, reused from block to block: the page faults of a new array cost more than the work."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

# Each thread has one buffer for each of these while it counts a block.
BLOCK, FLOATS, FIRST, SECOND = range(4)


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.arrays = [np.empty(0, np.int64) for _ in range(4)]


_BUFFERS = _Buffers()


def buffer(number: int, size: int) -> NDArray[np.int64]:
    """The first `size` numbers of this thread's buffer, with any content; the next user of the buffer overwrites it."""
    if len(_BUFFERS.arrays[number]) < size:
        _BUFFERS.arrays[number] = np.empty(size, np.int64)
    return _BUFFERS.arrays[number][:size]
