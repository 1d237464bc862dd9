"""Knows a set of rows by what is in them, and tells which share of a set another one has, too.

The different digests of the rows are kept, or the smallest of them: two sketches are then compared where both are
whole, below the smaller of their largest digests (bottom-k sampling; Broder 1997).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

# Of a set with more different rows, so many of the smallest digests stand for it: a share is known to one in a hundred.
SAMPLE = 8192
# Below so many rows that can be compared, a share is rounded up, because an unlucky sample could miss the shared rows.
_FEW = 64
_ID_LENGTH = 40


@dataclass(frozen=True)
class TestRows:
    """The rows of a test set, known by their digests.

    Attributes:
        digests: (≤ SAMPLE,) the smallest different digests of its rows, ascending.
        counts: (≤ SAMPLE,) how often each of them occurs; ones if the rows were read from a ledger.
    """

    __test__: ClassVar[bool] = False  # pytest: this is not a test

    digests: NDArray[np.uint64]
    counts: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, digests: NDArray[np.uint64]) -> TestRows:
        """From the digests (rows,) of all rows in any order."""
        different, counts = np.unique(digests.astype(np.uint64, copy=False), return_counts=True)
        return cls(different[:SAMPLE], counts[:SAMPLE].astype(np.int64))

    def with_more(self, digests: NDArray[np.uint64]) -> TestRows:
        """With the digests (rows,) of further rows; the same as if all came at once, in the memory of a sketch."""
        if len(self.digests) == SAMPLE:
            digests = digests[digests <= self.digests[-1]]  # a larger one cannot come in
        more, counts = np.unique(digests, return_counts=True)
        both, places = np.unique(np.concatenate([self.digests, more]), return_inverse=True)
        total = np.zeros(len(both), np.int64)
        np.add.at(total, places, np.concatenate([self.counts, counts]))
        return TestRows(both[:SAMPLE], total[:SAMPLE])

    @classmethod
    def of_digest(cls, hexadecimal: str) -> TestRows:
        """From one digest of all rows together, which shares everything or nothing with another."""
        whole = int.from_bytes(hashlib.sha256(hexadecimal.encode()).digest()[:8], "little")
        return cls.of(np.array([whole], np.uint64))

    @classmethod
    def from_bytes(cls, data: bytes) -> TestRows:
        """What `to_bytes` wrote; ValueError if it is not a sketch."""
        digests = np.frombuffer(data, "<u8").astype(np.uint64)
        if len(digests) > SAMPLE or bool(np.any(digests[1:] <= digests[:-1])):
            raise ValueError("not a sketch of rows")
        return cls(digests, np.ones(len(digests), np.int64))

    def to_bytes(self) -> bytes:
        """Its digests, little-endian."""
        return self.digests.astype("<u8").tobytes()

    @property
    def id(self) -> str:
        """The same for the same rows, in whatever order and however often each occurs."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:_ID_LENGTH]

    def covered_by(self, other: TestRows) -> float:
        """The share of these rows that the other set has, too, from 0 to 1.

        It is the larger of two shares, of the rows and of the different rows: neither a row that is repeated often nor
        one that is exposed and repeated hides behind the others. Where few rows can be compared it is rounded up.
        """
        if not len(self.digests) or not len(other.digests):
            return 0.0
        ends = [one.digests[-1] for one in (self, other) if len(one.digests) == SAMPLE]
        comparable = len(self.digests)
        if ends:
            comparable = int(np.searchsorted(self.digests, min(ends), side="right"))
        mine, counts = self.digests[:comparable], self.counts[:comparable]
        places = np.minimum(np.searchsorted(other.digests, mine), len(other.digests) - 1)
        shared = other.digests[places] == mine
        sampled = comparable < len(self.digests)
        if sampled and comparable < _FEW:
            return float((shared.sum() + 1) / (comparable + 1))
        return float(max(shared.mean(), counts[shared].sum() / counts.sum()))
