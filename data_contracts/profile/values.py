"""Counts numbers of one column of one part in blocks, so that the sizes of batches change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.profile import bins
from data_contracts.profile.buffers import BLOCK, FIRST, FLOATS, buffer
from data_contracts.profile.hashes import of_patterns
from data_contracts.profile.moments import MomentCounter, mean_and_stdev
from data_contracts.profile.record import Bins, Moments, Sample
from data_contracts.profile.samples import NumberSample, distinct

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# float64 holds every whole number up to here.
_EXACT = 2**53


@dataclass(frozen=True)
class _Coded:
    """Whole numbers by their places in a table, and how often each place occurs."""

    table: Ints
    codes: NDArray[Any]
    counts: Ints

    def __len__(self) -> int:
        return len(self.codes)


class Values:
    """Bins, moments and different values of numbers; they are counted in blocks, whatever the batches are.

    Args:
        block: values in a block.
        hashed: whether different values are counted, too.
    """

    def __init__(self, block: int, hashed: bool) -> None:
        self.infinite = 0
        self._hashed = hashed
        self._bins, self._moments, self._sample = bins.BinCounter(), MomentCounter(), NumberSample()
        self._range: tuple[float, float] | None = None
        self._size = block
        self._waiting: list[Floats | Ints | _Coded] = []
        self._filled = 0

    def add(self, values: Floats | Ints) -> None:
        """Count values, none of which is NaN; all as float64, or all as int64."""
        while len(values):
            taken, values = values[: self._size - self._filled], values[self._size - self._filled :]
            self._wait(taken)

    def add_coded(self, codes: NDArray[Any], table: Ints) -> Ints:
        """Count whole numbers that are given by their places in a table; returns how often each place occurs."""
        total = np.zeros(len(table), np.int64)
        while len(codes):
            taken, codes = codes[: self._size - self._filled], codes[self._size - self._filled :]
            places = buffer(FIRST, len(taken))
            np.copyto(places, taken)
            counts = np.bincount(places, minlength=len(table))
            total += counts
            self._wait(_Coded(table, taken, counts))
        return total

    def _wait(self, taken: Floats | Ints | _Coded) -> None:
        self._waiting.append(taken)
        self._filled += len(taken)
        if self._filled == self._size:
            self._count()

    def _count(self) -> None:
        if not self._filled:
            return
        waiting, self._waiting, self._filled = self._waiting, [], 0
        coded = [one for one in waiting if isinstance(one, _Coded)]
        if len(coded) == len(waiting) and self._count_coded(coded):
            return
        parts = [one.table[one.codes] if isinstance(one, _Coded) else one for one in waiting]
        if parts[0].dtype == np.int64:
            block: Any = parts[0] if len(parts) == 1 else np.concatenate(parts, out=buffer(BLOCK, sum(map(len, parts))))
            if self._count_ints(block):
                return
            parts = [block]
        self._count_floats(_floats(parts))

    def _count_coded(self, coded: list[_Coded]) -> bool:
        """Count a block from how often each entry of its tables occurs; False, and nothing, if that is not enough."""
        used = [np.flatnonzero(one.counts) for one in coded]
        numbers = np.concatenate([one.table[at] for one, at in zip(coded, used, strict=True)])
        times = np.concatenate([one.counts[at] for one, at in zip(coded, used, strict=True)])
        low = int(numbers.min())
        if not _close(low, int(numbers.max()), sum(map(len, coded))):
            return False
        counts = np.bincount(numbers - low, weights=times).astype(np.int64)
        return self._count_whole(low, counts, int(coded[0].table[coded[0].codes[0]]))

    def _count_ints(self, block: Ints) -> bool:
        """Count a block from how often each number occurs; False, and nothing, if that is not enough."""
        low = int(block.min())
        if not _close(low, int(block.max()), len(block)):
            return False
        counts = np.bincount(np.subtract(block, low, out=buffer(FIRST, len(block))))
        return self._count_whole(low, counts, int(block[0]))

    def _count_whole(self, low: int, counts: Ints, first: int) -> bool:
        """Count a block from how often each number occurs, from `low` on; False, and nothing, if sums would round."""
        present = np.flatnonzero(counts > 0)
        numbers, counts = present + low, counts[present]
        if not self._moments.add_whole(numbers, counts, first):
            return False
        self._widen(float(numbers[0]), float(numbers[-1]))
        patterns = bins.ordered(numbers.astype(np.float64))
        self._hashing(patterns, lambda: self._bins.add_counts(patterns, counts))
        return True

    def _count_floats(self, block: Floats) -> None:
        low, high = float(block.min()), float(block.max())
        finite = block
        if np.isinf(low) or np.isinf(high):
            finite = block[np.isfinite(block)]
            self.infinite += len(block) - len(finite)
        if len(finite):
            self._moments.add(finite)
            whole = len(finite) == len(block)
            self._widen(*((low, high) if whole else (float(finite.min()), float(finite.max()))))
        patterns = bins.ordered(block, positive=low >= 0)
        self._hashing(patterns, lambda: self._bins.add(patterns, low, high))

    def _hashing(self, patterns: Ints, count: Any) -> None:
        """Count patterns; their hashes are needed once there are more different values than bins."""
        before = self._bins.patterns if self._bins.shift == 0 else None
        count()
        if self._hashed and self._bins.shift:
            if before is not None:
                self._sample.add(of_patterns(before))
            self._sample.add_patterns(patterns)

    def _widen(self, low: float, high: float) -> None:
        least, most = low + 0.0, high + 0.0  # -0.0 or 0.0 would be chance
        self._range = (min(least, self._range[0]), max(most, self._range[1])) if self._range else (least, most)

    def fields(self) -> dict[str, Any]:
        """What the column's profile has of them."""
        self._count()
        counted = self._bins.record()
        sample = self._sample.record() if self._hashed and counted.shift else None
        return {"infinite": self.infinite, **summary(counted, self._moments.record(), sample, self._range)}


def _floats(parts: list[Floats | Ints]) -> Floats:
    """Numbers of some parts, in order, in the buffer FLOATS; zeros are without a sign."""
    numbers, at = buffer(FLOATS, sum(map(len, parts))).view(np.float64), 0
    for part in parts:
        np.add(part, 0.0, out=numbers[at : at + len(part)])  # -0.0 + 0.0 is 0.0
        at += len(part)
    return numbers


def _close(low: int, high: int, values: int) -> bool:
    """Whether whole numbers are close enough together to be counted in an array with one place for each."""
    return high - low < min(bins.SPAN, max(values // 2, bins.MOST)) and max(-low, high) <= _EXACT


def summary(
    counted: Bins, moments: Moments | None, sample: Sample | None, finite: tuple[float, float] | None
) -> dict[str, Any]:
    """Fields of a profile, and those that follow from them.

    Args:
        finite: the least and the greatest finite value; None if there is none.
    """
    fields: dict[str, Any] = {"bins": counted, "moments": moments, "sample": sample}
    if finite is not None:
        fields["minimum"], fields["maximum"] = finite
        fields["quantiles"] = bins.quantiles(counted, *finite)
    if moments is not None:
        try:
            fields["mean"], fields["stdev"] = mean_and_stdev(moments)
        except OverflowError:  # parts that are finite alone, such as 0 and 1e200, but not together
            fields["moments"] = None
    if sample is not None:
        fields["distinct"], fields["distinct_exact"] = distinct(sample), sample.exact
    elif counted.shift == 0:
        fields["distinct"] = len(counted.keys)
    return fields
