"""The BLAKE3 digests of many short messages at once: NumPy computes each step for all of them.

A call of a hasher for each message takes longer than the digest of its few bytes. Messages of one chunk (1,024 bytes)
need no tree, so the compression function is all that there is here; a hasher digests longer ones. Source: O'Connor,
Aumasson, Neves and Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020), sections 2.1 to 2.4.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

BLOCK_BYTES = 64
MOST_BYTES = 1024
DIGEST_WORDS = 4  # 32-bit words of a digest that are returned: 128 bits
# Messages that are compressed together. Fewer cost more calls, more do not fit the processor's cache.
_TOGETHER = 2**13
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_ROTATIONS = (16, 12, 8, 7)
_IV = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
_PERMUTATION = np.array([2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8])

Words = NDArray[np.uint32]


def digests(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The first 128 bits of each message's digest, (n, 2) uint64, little-endian.

    Args:
        data: the messages one after another.
        offsets: where each message begins in `data`, and where the last one ends: (n + 1,); no message is empty.
    """
    lengths = np.diff(offsets)
    digested = np.empty((len(lengths), DIGEST_WORDS), "<u4")
    for start in range(0, len(lengths), _TOGETHER):
        part = lengths[start : start + _TOGETHER]
        if part.max() <= MOST_BYTES:
            padded = _padded(data, offsets[start : start + len(part)], part)
            digested[start : start + len(part)] = _chunks(padded, part)
            continue
        for row in range(start, start + len(part)):
            message = data[offsets[row] : offsets[row + 1]].tobytes()
            digested[row] = np.frombuffer(blake3(message).digest(4 * DIGEST_WORDS), "<u4")
    return digested.view("<u8")


def _padded(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Messages as the rows of a matrix, with zeros after each, in whole blocks."""
    width = -(-int(lengths.max()) // BLOCK_BYTES) * BLOCK_BYTES
    # Each row is copied with whatever lies behind it, in one piece; the last rows need something behind them.
    block = np.zeros(int(starts[-1] + lengths[-1] - starts[0]) + width, np.uint8)
    block[:-width] = data[starts[0] : starts[-1] + lengths[-1]]
    windows = np.ndarray(len(block) - width + 1, np.dtype((np.void, width)), block, strides=(1,))
    padded = windows[starts - starts[0]].view(np.uint8).reshape(-1, width)
    padded *= np.arange(width, dtype=np.int16) < lengths.astype(np.int16)[:, None]
    return padded


def _chunks(messages: NDArray[np.uint8], lengths: NDArray[np.int64]) -> Words:
    """The first words of the digests of messages that are one chunk each, (n, DIGEST_WORDS)."""
    value = np.repeat(_IV[:, None], len(messages), axis=1)
    last = (lengths - 1) // BLOCK_BYTES
    for block in range(int(last.max(initial=0)) + 1):
        rows = np.flatnonzero(last >= block) if block else slice(None)
        bytes_left = np.minimum(lengths[rows] - block * BLOCK_BYTES, BLOCK_BYTES).astype(np.uint32)
        flags = np.where(last[rows] == block, _CHUNK_END | _ROOT, 0).astype(np.uint32)
        if block == 0:
            flags |= np.uint32(_CHUNK_START)
        words = messages[rows, block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES].view("<u4")
        value[:, rows] = _compressed(value[:, rows], np.ascontiguousarray(words.T), bytes_left, flags)
    return value[:DIGEST_WORDS].T


def _compressed(value: Words, words: Words, bytes_left: Words, flags: Words) -> Words:
    """The compression function at counter 0: the next chaining values, (8, n), from those before and (16, n) words."""
    rows = value.shape[1]
    # The second half of a round mixes the diagonals, which begin one, two and three words further along b, c and d. So
    # these have room for words that are repeated there, and both halves see four words one after another.
    a, b, c, d = (np.empty((size, rows), np.uint32) for size in (4, 5, 6, 5))
    a[:], b[:4], c[:4] = value[:4], value[4:], _IV[:4, None]
    d[1:3], d[3], d[4] = 0, bytes_left, flags
    spare = np.empty_like(a)
    parts = [part if part.any() else None for part in words]
    order = np.arange(16)
    for _ in range(7):
        _mix(a, b[:4], c[:4], d[1:], [parts[at] for at in order[:8]], spare)
        b[4], c[4:], d[0] = b[0], c[:2], d[4]
        _mix(a, b[1:], c[2:], d[:4], [parts[at] for at in order[8:]], spare)
        b[0], c[:2], d[4] = b[4], c[4:], d[0]
        order = order[_PERMUTATION]
    return np.concatenate([a ^ c[:4], b[:4] ^ d[1:]])


def _mix(a: Words, b: Words, c: Words, d: Words, parts: list[Words | None], spare: Words) -> None:
    """The function G on four columns of four words each, in place.

    Args:
        parts: two words for each column, (n,); None: zeros.
        spare: memory to calculate in.
    """
    for half, (of_d, of_b) in enumerate((_ROTATIONS[:2], _ROTATIONS[2:])):
        a += b
        for into, part in zip(a, parts[half::2], strict=True):
            if part is not None:
                into += part
        d ^= a
        _rotate(d, of_d, spare)
        c += d
        b ^= c
        _rotate(b, of_b, spare)


def _rotate(words: Words, right: int, spare: Words) -> None:
    np.left_shift(words, np.uint32(32 - right), out=spare)
    np.right_shift(words, np.uint32(right), out=words)
    words |= spare
