"""The Feistel network of `permutation` in NumPy, for few rows: the same numbers as `feistel`, without Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def table(num_rows: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A permutation of `range(num_rows)`, (num_rows,); `keys`: (passes, rounds)."""
    bits = num_rows.bit_length() // 2
    rows = np.arange(num_rows)
    for of_pass in keys:
        images = _images((num_rows + (1 << bits) - 1) >> bits, bits, of_pass)
        rows = images[rows]
        while (outside := rows >= num_rows).any():
            rows[outside] = images[rows[outside]]
    return rows


def _images(high: int, bits: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where the network maps each of its `high` times 2^bits rows, (rows,); `keys`: one per round."""
    rows = np.arange(high << bits, dtype=np.uint64)
    width, factor, low = np.uint64(bits), np.uint64(high), np.uint64((1 << bits) - 1)
    left, right = rows >> width, rows & low
    for number in range(0, len(keys), 2):
        left = left + ((_hash(right ^ keys[number]) * factor) >> np.uint64(32))
        left = np.minimum(left, left - factor)  # unsigned, so one of the two is below `high`
        right = (right + _hash(left ^ keys[number + 1])) & low
    return ((left << width) | right).astype(np.int64)


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """32 well-mixed bits of each, in the low half."""
    values = values * np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(32)
    values *= np.uint64(0xC4CEB9FE1A85EC53)
    return values >> np.uint64(32)
