"""The Feistel network of `order`, compiled by Numba, and how Numba compiles all loops of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


def compiled(function: Callable) -> Any:
    """Compile a function on its first call for each set of types; the machine code is cached between processes."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither __pycache__ nor the user's cache folder can be written
        return njit(nogil=True)(function)


@compiled
def _hash(value: np.uint64) -> np.uint64:
    """32 well-mixed bits, in the low half."""
    value *= np.uint64(0x9E3779B97F4A7C15)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value >> np.uint64(32)


@compiled
def _twice(
    left: np.uint64, right: np.uint64, high: np.uint64, low: np.uint64, key: np.uint64, next_key: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Two rounds: `left` below `high` moves by a hash of `right`, then `right` (mask `low`) by a hash of `left`."""
    # A hash times `high`, halved, is spread evenly over range(high). Unsigned, so one of the two is below `high`.
    left += (_hash(right ^ key) * high) >> np.uint64(32)
    left = min(left, left - high)
    return left, (right + _hash(left ^ next_key)) & low


@compiled
def permute(rows: NDArray[np.int64], num_rows: np.uint64, bits: np.uint64, keys: NDArray[np.uint64]) -> None:
    """Permute `rows` (int64, one dimension) in place within `range(num_rows)`; `keys` are uint64, one per round."""
    low = (np.uint64(1) << bits) - np.uint64(1)
    high = (num_rows + low) >> bits
    # Branch-free, so that it compiles to vector instructions; the few rows that fall outside are handled afterwards.
    for at in range(len(rows)):
        row = np.uint64(rows[at])
        left, right = row >> bits, row & low
        left, right = _twice(left, right, high, low, keys[0], keys[1])
        left, right = _twice(left, right, high, low, keys[2], keys[3])
        left, right = _twice(left, right, high, low, keys[4], keys[5])
        left, right = _twice(left, right, high, low, keys[6], keys[7])
        rows[at] = np.int64((left << bits) | right)
    for at in range(len(rows)):
        row = np.uint64(rows[at])
        while row >= num_rows:
            left, right = row >> bits, row & low
            for number in range(0, len(keys), 2):
                left, right = _twice(left, right, high, low, keys[number], keys[number + 1])
            row = (left << bits) | right
        rows[at] = np.int64(row)
