"""The BLAKE3 digests of many short messages at once.

A call of a hasher for each message takes longer than the digest of its few bytes, so native code digests 16 at a time
once there are enough of them to pay for generating it. A hasher digests the first messages, and long ones.
"""

from __future__ import annotations

import sys

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

DIGEST_BYTES = 16
# Messages that a hasher digests in a process before native code is generated, which takes as long as 100,000 of them.
FEW = 2**15

_digested = 0


def digests(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The first 128 bits of each message's digest, (n, 2) uint64, little-endian.

    Args:
        data: the messages one after another.
        offsets: where each message begins in `data`, and where the last one ends: (n + 1,); no message is empty.
    """
    global _digested
    _digested += len(offsets) - 1
    if _digested <= FEW or sys.byteorder == "big":
        return _one_by_one(data, offsets[:-1], offsets[1:])
    return _together(data, offsets)


def _one_by_one(data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint64]:
    view = data.data
    pairs = zip(starts.tolist(), stops.tolist(), strict=True)
    joined = b"".join([blake3(view[start:stop]).digest(DIGEST_BYTES) for start, stop in pairs])
    return np.frombuffer(joined, "<u8").reshape(-1, 2)


def _together(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    # Imported when there is much to digest.
    from training.shard.blake3_native import CHUNK_BYTES, DIGEST_WORDS, LANES, SPARE_BYTES, native

    rows, first = len(offsets) - 1, offsets[0]
    groups = -(-rows // LANES)
    # The last group is filled up with messages of one byte.
    starts, lengths = np.zeros(groups * LANES, np.int64), np.ones(groups * LANES, np.int32)
    starts[:rows] = offsets[:-1] - first
    sizes = np.diff(offsets)
    lengths[:rows] = np.minimum(sizes, CHUNK_BYTES)
    spaced = np.empty(offsets[-1] - first + SPARE_BYTES, np.uint8)
    spaced[:-SPARE_BYTES] = data[first : offsets[-1]]
    spaced[-SPARE_BYTES:] = 0
    words = np.empty((groups, DIGEST_WORDS, LANES), "<u4")
    digest, _ = native()
    digest(groups, *(part.ctypes.data for part in (spaced, starts, lengths, words)))
    made = np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(-1, DIGEST_WORDS)[:rows].view("<u8")
    long = np.flatnonzero(sizes > CHUNK_BYTES)
    made[long] = _one_by_one(data, offsets[long], offsets[long + 1])
    return made
