"""Hashes of values, the same on every machine: they choose which values are kept of a column with very many."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.profile.buffers import FIRST, SECOND, buffer

# Longer texts are hashed one by one.
_SHORT = 256

Hashes = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOWER = (1 << 33) - 1


def mixed(numbers: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection."""
    mixing = _mixed_but_for_the_last_step(numbers.copy())
    mixing ^= mixing >> np.uint64(31)
    return mixing


def _mixed_but_for_the_last_step(mixing: Hashes, shifted: Hashes | None = None) -> Hashes:
    """In place; `shifted` is memory for as many numbers. The last step leaves the upper 31 bits as they are."""
    shifted = np.right_shift(mixing, np.uint64(30), out=shifted)
    mixing ^= shifted
    mixing *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(mixing, np.uint64(27), out=shifted)
    mixing ^= shifted
    mixing *= np.uint64(0x94D049BB133111EB)
    return mixing


def of_patterns(patterns: NDArray[np.int64]) -> Hashes:
    """Hashes of float64 values, by their patterns (`bins.ordered`)."""
    return mixed(patterns.view(np.uint64) + _GOLDEN)


def of_patterns_below(patterns: NDArray[np.int64], bound: int) -> Hashes:
    """The hashes below a bound, and few more; `patterns` may be the buffer FIRST, which is overwritten."""
    mixing, shifted = (buffer(number, len(patterns)).view(np.uint64) for number in (FIRST, SECOND))
    np.add(patterns.view(np.uint64), _GOLDEN, out=mixing)
    _mixed_but_for_the_last_step(mixing, shifted)
    least = mixing[mixing <= np.uint64(bound | _LOWER)]
    least ^= least >> np.uint64(31)
    return least


def of_texts(texts: pa.Array) -> Hashes:
    """Hashes of texts (large_string, no nulls) by their bytes, eight at a time for all texts together."""
    _, offset_buffer, data = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    starts, sizes = offsets[:-1], np.diff(offsets)
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    padded = np.concatenate([held[first:last], np.zeros(8, np.uint8)])
    words = np.ndarray((len(padded) - 7,), "<u8", padded.tobytes(), 0, (1,))
    hashes = mixed(sizes.astype(np.uint64) + _GOLDEN)
    rows = np.flatnonzero((sizes > 0) & (sizes <= _SHORT))
    at = 0
    while len(rows):
        left = sizes[rows] - at
        word = words[starts[rows] - first + at]
        kept = np.minimum(left, 8).astype(np.uint64) * np.uint64(8)
        # A shift by 64 bits is not defined, so it is done in two steps.
        low = np.uint64(64) - kept
        word = (word << (low >> np.uint64(1))) << (low - (low >> np.uint64(1)))
        hashes[rows] = mixed(hashes[rows] ^ word)
        at += 8
        rows = rows[left > 8]
    for row in np.flatnonzero(sizes > _SHORT).tolist():
        text = held[int(starts[row]) : int(starts[row] + sizes[row])].tobytes()
        hashes[row] = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return hashes
