"""Counts numbers of one column of one part in blocks, so that the sizes of batches change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.profile import bins
from data_contracts.profile.hashes import of_patterns
from data_contracts.profile.moments import MomentCounter, mean_and_stdev
from data_contracts.profile.record import Bins, Moments, Sample
from data_contracts.profile.samples import NumberSample, distinct

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# float64 holds every whole number up to here.
_EXACT = 2**53


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
        self._waiting: list[Floats | Ints] = []
        self._filled = 0

    def add(self, values: Floats | Ints) -> None:
        """Count values, none of which is NaN; all as float64, or all as int64."""
        while len(values):
            taken, values = values[: self._size - self._filled], values[self._size - self._filled :]
            self._waiting.append(taken)
            self._filled += len(taken)
            if self._filled == self._size:
                self._count()

    def _count(self) -> None:
        if not self._filled:
            return
        block: NDArray[Any] = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self._waiting, self._filled = [], 0
        if block.dtype != np.int64:
            self._count_floats(block)
            return
        low, high = int(block.min()), int(block.max())
        if high - low < min(bins.SPAN, max(len(block) // 2, bins.MOST)) and max(-low, high) <= _EXACT:
            self._count_whole(block, low, high)
        else:
            self._count_floats(block.astype(np.float64))

    def _count_whole(self, block: Ints, low: int, high: int) -> None:
        """Count whole numbers that are close together: first how often each occurs, the rest from that."""
        counts = np.bincount(block - low)
        present = np.flatnonzero(counts > 0)
        numbers, counts = present + low, counts[present]
        if not self._moments.add_whole(numbers, counts, int(block[0])):
            self._moments.add(block.astype(np.float64))
        self._widen(float(low), float(high))
        patterns = bins.ordered(numbers.astype(np.float64))
        self._hashing(patterns, lambda: self._bins.add_counts(patterns, counts))

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
        patterns = bins.ordered(block, positive=low > 0)
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
