"""Counts float64 values in nested bins: a bin is the upper bits of a value's bit pattern, so its edges are fixed.

The number of bits follows from the values alone: as many as keep at most MOST bins occupied. So counts are exact, any
two parts merge exactly, and the result depends neither on the order nor on the batches. (DDSketch's bins follow from
logarithms, which differ between machines; UDDSketch collapses bins in the same way.)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_contracts.profile.buffers import FIRST, SECOND, buffer
from data_contracts.profile.numbers import as_arrow, without_nulls
from data_contracts.profile.record import Bins

MOST = 1024
# Wider ranges of bins are counted by hashing, not in an array.
SPAN = 1 << 17
_FIRST_PART = 4096
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF
QUANTILES = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")

Ints = NDArray[np.int64]


def ordered(values: NDArray[np.float64], *, positive: bool = False) -> Ints:
    """Integers in the order of the values, equal for equal values.

    Args:
        values: none of them is -0.0.
        positive: none of them is below zero; then this is their own memory, else the buffer FIRST.
    """
    patterns = values.view(np.int64)
    if positive:
        return patterns
    found, signs = (buffer(number, len(values)) for number in (FIRST, SECOND))
    np.right_shift(patterns, 63, out=signs)
    np.bitwise_and(signs, _MAGNITUDE, out=signs)
    return np.bitwise_xor(patterns, signs, out=found)


def _pattern(value: float) -> int:
    """The integer that `ordered` makes of a value."""
    pattern: int = struct.unpack("<q", struct.pack("<d", value + 0.0))[0]
    return pattern ^ (_MAGNITUDE if pattern < 0 else 0)


def value_of(pattern: int) -> float:
    """The value that `ordered` makes this integer of; of a pattern above infinity, infinity."""
    pattern = max(min(pattern, _MAGNITUDE), -_MAGNITUDE - 1)  # a wide bin's end may be beyond all patterns
    plain = pattern ^ (_MAGNITUDE if pattern < 0 else 0)
    value: float = struct.unpack("<d", struct.pack("<q", plain))[0]
    return math.copysign(math.inf, pattern) if math.isnan(value) else value


class BinCounter:
    """Counts values in at most MOST bins."""

    def __init__(self) -> None:
        self.shift = 0
        self._keys: Ints = np.empty(0, np.int64)
        self._counts: Ints = np.empty(0, np.int64)

    @property
    def patterns(self) -> Ints:
        """The bins; with shift 0, the patterns of all values so far."""
        return self._keys

    def add(self, patterns: Ints, low: float, high: float) -> None:
        """Count values.

        Args:
            patterns: from `ordered`.
            low, high: the least and the greatest of the values.
        """
        if not len(self._keys):
            # A small first part shows about how wide the bins are, so the rest is not counted to the last bit.
            first, patterns = np.sort(patterns[:_FIRST_PART]), patterns[_FIRST_PART:]
            self._merge(*_summed(first, np.ones(len(first), np.int64)))
        if len(patterns):
            keys = np.right_shift(patterns, self.shift, out=buffer(SECOND, len(patterns)))
            self._merge(*_counted(keys, *(_pattern(value) >> self.shift for value in (low, high))))

    def add_counts(self, patterns: Ints, counts: Ints) -> None:
        """Count ascending different values, so often each."""
        self._merge(*_summed(patterns >> self.shift, counts))

    def merge(self, other: Bins) -> None:
        """Add the counts of another part."""
        if not other.keys:
            return
        keys, counts = np.array(other.keys, np.int64), np.array(other.counts, np.int64)
        shift = max(self.shift, other.shift)
        self._coarsen(shift)
        self._merge(*_united(keys >> (shift - other.shift), counts))

    def record(self) -> Bins:
        """The bins as they are sealed."""
        return Bins(shift=self.shift, keys=self._keys.tolist(), counts=self._counts.tolist())

    def _merge(self, keys: Ints, counts: Ints) -> None:
        """Add counts of different bins of the current shift."""
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            if np.array_equal(self._keys[at], keys):  # as in nearly every block but the first
                self._counts[at] += counts
                return
        self._keys, self._counts = _united(np.concatenate([self._keys, keys]), np.concatenate([self._counts, counts]))
        if len(self._keys) > MOST:
            self._coarsen(self.shift + _bits_too_many(self._keys))

    def _coarsen(self, shift: int) -> None:
        if shift > self.shift and len(self._keys):
            self._keys, self._counts = _summed(self._keys >> (shift - self.shift), self._counts)
        self.shift = max(shift, self.shift)


def _counted(keys: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """The different integers, which lie between two, and how often each occurs; `keys` are changed."""
    if high - low < SPAN:
        keys -= low
        counts = np.bincount(keys)
        present = np.flatnonzero(counts > 0)
        return present + low, counts[present]
    found = as_arrow(keys).value_counts()
    return without_nulls(found.field("values")), without_nulls(found.field("counts"))


def _united(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Ascending keys, each once, with the sums of their counts."""
    order = np.argsort(keys, kind="stable")
    return _summed(keys[order], counts[order])


def _summed(keys: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The same for keys that ascend already, of which there is at least one."""
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts, first)


def _bits_too_many(keys: Ints) -> int:
    """The least number of bits to drop from ascending keys, so that at most MOST different ones are left."""
    low, high = 1, 63
    while low < high:
        middle = (low + high) // 2
        if np.count_nonzero(np.diff(keys >> middle)) + 1 <= MOST:
            high = middle
        else:
            low = middle + 1
    return low


def edges(bins: Bins, key: int) -> tuple[float, float]:
    """The least value of a bin and the least above it; the value itself twice, if the bin holds one value."""
    low = value_of(key << bins.shift)
    return (low, low) if bins.shift == 0 else (low, value_of((key + 1) << bins.shift))


def quantiles(bins: Bins, minimum: float, maximum: float) -> dict[str, float]:
    """Quantiles by rank, straight between the edges of a bin and never outside the values' range."""
    total = sum(bins.counts)
    below = np.concatenate([[0], np.cumsum(bins.counts)]).tolist()
    found = {}
    for name in QUANTILES:
        rank = float(name) * (total - 1)
        at = int(np.searchsorted(below, rank, side="right")) - 1
        low, high = edges(bins, bins.keys[at])
        if not (math.isfinite(low) or math.isfinite(high)):
            continue  # an infinite value
        low, high = (min(max(edge, minimum), maximum) for edge in (low, high))
        inside = (rank - below[at] + 0.5) / bins.counts[at]
        found[name] = low if low == high else low + (high - low) * min(inside, 1.0)
    return found


def common(first: Bins, second: Bins) -> tuple[list[int], list[int], list[int], int]:
    """The bins of two profiles, made equally wide: ascending keys, counts of each profile, and the shift."""
    shift = max(first.shift, second.shift)
    one, two = (_by_key(bins, shift) for bins in (first, second))
    keys = sorted(one.keys() | two.keys())
    return keys, [one.get(key, 0) for key in keys], [two.get(key, 0) for key in keys], shift


def _by_key(bins: Bins, shift: int) -> dict[int, int]:
    counts: dict[int, int] = {}
    for key, count in zip(_shifted(bins.keys, shift - bins.shift), bins.counts, strict=True):
        counts[key] = counts.get(key, 0) + count
    return counts


def _shifted(keys: Sequence[int], bits: int) -> list[int]:
    return [key >> bits for key in keys]
