"""Counts different values: all of them while there are few, else those with the least hashes.

A value that is kept in the end was kept from its first row on, so its count is exact, and the result depends neither
on the order nor on the batches.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_contracts.profile.hashes import Hashes, of_patterns, of_patterns_below, of_texts
from data_contracts.profile.numbers import as_arrow
from data_contracts.profile.record import Sample

# Different values that are all kept, and those that are kept of more (the estimate of their number is right to 6 %).
MOST = 1024
KEPT = 256
_LONGEST = 100
_SHOWN = 64


def label(text: str, hash_: int) -> str:
    """A text as the profile shows it: whole, or its beginning and its hash."""
    return text if len(text) <= _LONGEST else f"{text[:_SHOWN]}…{hash_:016x}"


class TextSample:
    """Different texts and the number of their rows."""

    def __init__(self) -> None:
        self._exact = True
        self._found: dict[str, tuple[int, int]] = {}  # label: hash and count

    def add(self, texts: pa.Array) -> None:
        """Count texts (large_string, no nulls)."""
        if not self._exact:
            hashes = of_texts(texts)
            below = hashes <= np.uint64(max(hash_ for hash_, _ in self._found.values()))
            if not below.any():
                return
            texts = texts.take(as_arrow(np.flatnonzero(below)))
        counted = texts.value_counts()
        self.add_counts(counted.field("values"), counted.field("counts").to_pylist())

    def add_counts(self, texts: pa.Array, counts: list[int]) -> None:
        """Count different texts (large_string, no nulls), so often each."""
        hashes = of_texts(texts)
        if self._exact and len(texts) > MOST:
            self._exact = False
        if not self._exact and len(texts) > KEPT:
            least = np.sort(np.argpartition(hashes, KEPT - 1)[:KEPT])
            texts, counts, hashes = texts.take(as_arrow(least)), [counts[at] for at in least.tolist()], hashes[least]
        for text, hash_, count in zip(texts.to_pylist(), hashes.tolist(), counts, strict=True):
            name = label(text, hash_)
            self._found[name] = (hash_, self._found.get(name, (0, 0))[1] + count)
        self._trim()

    def merge(self, part: Sample) -> None:
        """Add the values of another part."""
        self._exact = self._exact and part.exact
        for name, hash_, count in zip(part.labels, part.hashes, part.counts, strict=True):
            self._found[name] = (hash_, self._found.get(name, (0, 0))[1] + count)
        self._trim()

    def _trim(self) -> None:
        self._exact = self._exact and len(self._found) <= MOST
        if not self._exact and len(self._found) > KEPT:
            by_hash = sorted(self._found.items(), key=lambda one: (one[1][0], one[0]))
            self._found = dict(by_hash[:KEPT])

    def record(self) -> Sample:
        """The values as they are sealed, by their hashes."""
        found = sorted(self._found.items(), key=lambda one: (one[1][0], one[0]))
        return Sample(
            exact=self._exact,
            hashes=[hash_ for _, (hash_, _) in found],
            labels=[name for name, _ in found],
            counts=[count for _, (_, count) in found],
        )


class NumberSample:
    """The least hashes of numbers, once there are too many different ones for bins of one value."""

    def __init__(self) -> None:
        self._least: Hashes = np.empty(0, np.uint64)

    def add_patterns(self, patterns: NDArray[np.int64]) -> None:
        """Take numbers into account, by their patterns."""
        full = len(self._least) == KEPT
        self.add(of_patterns_below(patterns, int(self._least[-1])) if full else of_patterns(patterns))

    def add(self, hashes: Hashes) -> None:
        """Take hashes into account."""
        if len(self._least) == KEPT:
            hashes = hashes[hashes < self._least[-1]]
        if not len(hashes):
            return
        if len(hashes) > 16 * KEPT:  # most of a first block need not be sorted
            near = _different(hashes[hashes <= np.uint64(2**64 // len(hashes) * 4 * KEPT)])
            hashes = near if len(near) >= KEPT else hashes  # few values, often
        self._least = _different(np.concatenate([self._least, hashes]))[:KEPT]

    def record(self) -> Sample:
        """The hashes as they are sealed."""
        return Sample(exact=False, hashes=self._least.tolist())


def _different(hashes: Hashes) -> Hashes:
    """Each of at least one hash once, ascending; sorts `hashes`. (np.unique makes a hash table, which is slower.)"""
    hashes.sort()
    return hashes[np.concatenate([[True], hashes[1:] != hashes[:-1]])]


def distinct(sample: Sample) -> int:
    """The number of different values: exact, or estimated from the hashes (Bar-Yossef et al. 2002)."""
    if sample.exact or len(sample.hashes) < KEPT:
        return len(sample.hashes)
    return round((KEPT - 1) * 2**64 / (sample.hashes[-1] + 1))


def as_texts(column: pa.Array) -> pa.Array:
    """A column of text in one type, without nulls; pa.ArrowInvalid if it holds other bytes than UTF-8."""
    texts = pc.drop_null(column).cast(pa.large_string())
    texts.validate(full=True)
    return texts
