"""Merges the profiles of parts, in any order, into one; each part is needed only while it is added."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from data_contracts.profile.bins import BinCounter
from data_contracts.profile.columns import of_texts
from data_contracts.profile.hashes import of_patterns
from data_contracts.profile.moments import MomentSum
from data_contracts.profile.record import Bins, ColumnProfile, Profile, Sample
from data_contracts.profile.samples import NumberSample, TextSample
from data_contracts.profile.values import summary


def merged(parts: Iterable[Profile]) -> Profile:
    """The profile of all parts together; all have the same columns, and there is at least one part."""
    merger = Merger()
    for part in parts:
        merger.add(part)
    return merger.record()


class Merger:
    """Adds up profiles of parts that have the same columns; the memory does not grow with the parts."""

    def __init__(self) -> None:
        self.rows = 0
        self._only: Profile | None = None  # a column of a single part is its own merge if it has values
        self._columns: list[_Column] = []

    def add(self, part: Profile) -> None:
        """Add a part."""
        self.rows += part.rows
        if self._only is None and not self._columns:
            self._only = part
            return
        parts = [part] if self._only is None else [self._only, part]
        self._only = None
        for one in parts:
            self._add(one)

    def _add(self, part: Profile) -> None:
        self._columns = self._columns or [_Column(one) for one in part.columns]
        for column, one in zip(self._columns, part.columns, strict=True):
            column.add(one)

    def record(self) -> Profile:
        """The profile of all parts so far."""
        if self._only is not None:
            return Profile(rows=self.rows, columns=[one if one.values else _alone(one) for one in self._only.columns])
        return Profile(rows=self.rows, columns=[column.record() for column in self._columns])


def _alone(part: ColumnProfile) -> ColumnProfile:
    """The merge of one part of a column."""
    column = _Column(part)
    column.add(part)
    return column.record()


class _Column:
    """The same column of all parts.

    Args:
        first: of one of the parts.
    """

    def __init__(self, first: ColumnProfile) -> None:
        self._first = first.model_copy(update={"bins": first.bins and Bins(shift=0, keys=[], counts=[])})
        self._counts = dict.fromkeys(("rows", "nulls", "infinite"), 0)
        self._bins, self._moments = BinCounter(), MomentSum()
        self._numbers = NumberSample() if first.kind in ("number", "time") else None
        self._texts: TextSample | None = TextSample() if first.kind == "text" else None
        self._range: tuple[float, float] | None = None
        self._known = True  # of each part that has values, their bins
        self._summed = True  # and their moments

    def add(self, part: ColumnProfile) -> None:
        for name in self._counts:
            self._counts[name] += getattr(part, name)
        if not part.values:
            return
        if part.bins is None:
            self._known = False
            return
        self._add_sample(part.bins, part.sample)
        if part.minimum is not None and part.maximum is not None:
            low, high = self._range or (part.minimum, part.maximum)
            self._range = (min(low, part.minimum), max(high, part.maximum))
        if part.moments is not None:
            self._moments.add(part.moments)
        elif part.values > part.infinite:
            self._summed = False

    def _add_sample(self, counted: Bins, sample: Sample | None) -> None:
        before = self._bins.patterns if self._bins.shift == 0 else None
        self._bins.merge(counted)
        if self._texts is not None:
            if sample is None:
                self._texts = None
            else:
                self._texts.merge(sample)
        if self._numbers is not None and self._bins.shift:
            if before is not None:
                self._numbers.add(of_patterns(before))
            hashes = of_patterns(np.array(counted.keys, np.int64)) if sample is None else sample.hashes
            self._numbers.add(np.array(hashes, np.uint64))

    def record(self) -> ColumnProfile:
        """The column's profile over all parts."""
        first = self._first
        plain = ColumnProfile(name=first.name, type=first.type, kind=first.kind, **self._counts)
        if not self._known:
            return plain
        if not plain.values:  # then the sample of each part is empty, too
            return plain.model_copy(update={"bins": first.bins, "sample": first.sample})
        sample = self._texts.record() if self._texts is not None else None
        if self._numbers is not None and self._bins.shift:
            sample = self._numbers.record()
        moments = self._moments.record() if self._summed else None
        fields = summary(self._bins.record(), moments, sample, self._range)
        return plain.model_copy(update=fields | (of_texts(sample) if first.kind in ("text", "bytes") else {}))
