"""MinHash bands of texts: two texts whose sets of shingles are similar share a band with a stated probability.

A shingle is a run of `size` characters (code points); a shorter text is one shingle. Each of a text's minima under
BANDS × rows hash functions equals another text's with the probability of their Jaccard similarity s (Broder, "On the
resemblance and containment of documents", 1997), so that with b bands of r minima the probability of a shared band is
1 - (1 - s^r)^b (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", chapter 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_contracts.profile.sketches import mixed

# Minima of a text, at most; the probability that a pair at the stated similarity shares no band, at most.
MINIMA = 72
MISSED = 0.005
# Of longer texts only the beginning is compared, so that memory is bounded.
LONGEST = 2**20
# Code points that are hashed at once: few enough for a processor's cache.
CHUNK = 2**15
_BASE = np.uint64(0x100000001B3)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def banding(similarity: float) -> tuple[int, int]:
    """Bands, and minima of each: the longest bands that miss at most MISSED of the pairs at this similarity."""
    for length in range(MINIMA, 0, -1):
        bands = MINIMA // length
        if (1 - similarity**length) ** bands <= MISSED:
            return bands, length
    raise AssertionError("one minimum a band misses nothing")


class Bands:
    """Makes the bands of texts."""

    def __init__(self, similarity: float, size: int) -> None:
        self.bands, self.length = banding(similarity)
        self._size = size
        drawn = mixed(np.arange(1, 2 * self.bands * self.length + 1, dtype=np.uint64) * _GAMMA)
        # Multiply-add modulo 2^32 with odd factors: one-to-one, and fast.
        self._factors = (drawn[::2] >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        self._terms = (drawn[1::2] >> np.uint64(32)).astype(np.uint32)

    def of(self, texts: Sequence[str]) -> NDArray[np.uint64]:
        """The digest of each band of each text: (texts, bands) uint64; no text is empty."""
        minima = np.empty((len(texts), len(self._factors)), np.uint32)
        start = 0
        while start < len(texts):
            stop, size = start, 0
            while stop < len(texts) and (stop == start or size + len(texts[stop]) <= CHUNK):
                size += len(texts[stop])
                stop += 1
            self._minima(texts[start:stop], minima[start:stop])
            start = stop
        digests = np.empty((len(texts), self.bands), np.uint64)
        for band in range(self.bands):
            word = np.full(len(texts), band + 1, np.uint64) * _GAMMA
            for column in range(band * self.length, (band + 1) * self.length):
                word = mixed((word + _GAMMA) ^ minima[:, column].astype(np.uint64))
            digests[:, band] = word
        return digests

    def _minima(self, texts: Sequence[str], out: NDArray[np.uint32]) -> None:
        hashes, begins = self._shingles(texts)
        scratch = np.empty_like(hashes)
        for column, (factor, term) in enumerate(zip(self._factors, self._terms, strict=True)):
            np.multiply(hashes, factor, out=scratch)
            np.add(scratch, term, out=scratch)
            out[:, column] = np.minimum.reduceat(scratch, begins)

    def _shingles(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Hashes of all shingles, text after text, and where each text's begin."""
        size = self._size
        # Padding makes one shingle of a short text; the null character keeps it apart from longer texts.
        padded = [text[:LONGEST] if len(text) >= size else text.ljust(size, "\0") for text in texts]
        lengths = np.fromiter(map(len, padded), np.int64, len(padded))
        points = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint64)
        rolled = np.zeros(len(points) - size + 1, np.uint64)
        for offset in range(size):
            rolled = rolled * _BASE + points[offset : offset + len(rolled)] + np.uint64(1)
        ends = np.cumsum(lengths)
        counts = lengths - size + 1
        begins = np.cumsum(counts) - counts
        # Shingles that would run from one text into the next are left out.
        at = np.arange(int(counts.sum())) + np.repeat(ends - lengths - begins, counts)
        return (mixed(rolled[at]) >> np.uint64(32)).astype(np.uint32), begins
