"""The order in which rows are written: each row draws a 64-bit key, and a split's rows are sorted by their keys.

A key is a pure function of the seed, the split, the unit that the row came from and the row's number in it, so keys can
be drawn anywhere and in any order. The draw is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; constants as in Vigna's public domain splitmix64.c), one stream a unit and split.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.canonical import canonical

# A key's range is its top 16 bits.
RANGES = 2**16
_SHIFT = np.uint64(48)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST = np.uint64(31)


def shuffle_keys(start: np.uint64, first_row: int, rows: int) -> NDArray[np.uint64]:
    """The keys of `rows` rows from row `first_row` on, (rows,) uint64; the keys of one stream are all different."""
    drawn = np.arange(first_row + 1, first_row + rows + 1, dtype=np.uint64) * _GAMMA + start
    for shift, factor in _MIX:
        drawn = (drawn ^ (drawn >> shift)) * factor
    return drawn ^ (drawn >> _LAST)


def stream_start(seed: int, split: str, unit: int, unit_digest: str) -> np.uint64:
    """The start of a unit's stream for a split."""
    words = ["trainwright shuffle", seed, split, unit, unit_digest]
    return np.frombuffer(blake3(canonical(words)).digest(8), "<u8")[0]


def key_ranges(keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """The range of each key (rows,): its top 16 bits."""
    return (keys >> _SHIFT).astype(np.uint16)


def key_order(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The order of keys; equal keys stay in the order in which they were put in."""
    order = np.argsort(keys)  # vectorised, but not stable
    ordered = keys[order]
    return np.argsort(keys, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def ranges_between(ranges: NDArray[np.uint16], low: int, high: int) -> tuple[int, int]:
    """The part of sorted ranges with low <= range < high."""
    last = len(ranges) if high >= RANGES else int(np.searchsorted(ranges, np.uint16(high), "left"))
    return int(np.searchsorted(ranges, np.uint16(low), "left")), last
