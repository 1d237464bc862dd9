"""Memory for a block of numbers that is used again: to have a new array's pages made costs more than the work on it."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

# What is in a room of this number while a block is counted.
BLOCK, FLOATS, FIRST, SECOND = range(4)


class _Rooms(threading.local):
    def __init__(self) -> None:
        self.arrays = [np.empty(0, np.int64) for _ in range(4)]


_ROOMS = _Rooms()


def room(number: int, size: int) -> NDArray[np.int64]:
    """This thread's array of a number, of which the content is not defined; its next user overwrites it."""
    if len(_ROOMS.arrays[number]) < size:
        _ROOMS.arrays[number] = np.empty(size, np.int64)
    return _ROOMS.arrays[number][:size]
