"""BLAKE3 digests of bytes, the identity of raw and sealed files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Protocol

from blake3 import blake3

PIECE_BYTES = 2**22
SYNC_BYTES = 2**26


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, all remaining bytes if it is negative; b"" at the end."""


def hash_stream(stream: Readable, *sinks: Callable[[memoryview], object], most: float = math.inf) -> tuple[int, str]:
    """Size and BLAKE3 (hexadecimal) of the rest of a stream; every piece is passed to the sinks as well.

    A piece is valid until its sink returns.

    Args:
        most: bytes that the stream should have at most; of a longer one, little more is read, and the size is larger.
    """
    return hash_pieces(_pieces(stream, most), *sinks)


def hash_pieces(pieces: Iterable[memoryview], *sinks: Callable[[memoryview], object]) -> tuple[int, str]:
    """As `hash_stream`, for bytes that come in pieces."""
    hasher = blake3(max_threads=blake3.AUTO)
    size = 0
    for piece in pieces:
        hasher.update(piece)
        size += len(piece)
        for sink in sinks:
            sink(piece)
    return size, hasher.hexdigest()


def _pieces(stream: Readable, most: float) -> Iterator[memoryview]:
    # A file reads into the same memory again and again, which is twice as fast as into fresh memory.
    if isinstance(stream, BufferedReader | FileIO):
        buffer = memoryview(bytearray(PIECE_BYTES))
        while most >= 0 and (count := stream.readinto(buffer)):
            yield buffer[:count]
            most -= count
        return
    while most >= 0 and (piece := stream.read(PIECE_BYTES)):
        yield memoryview(piece)
        most -= len(piece)


def write_hashed(pieces: Iterable[memoryview], file: RawIOBase, *, sync: bool = False) -> tuple[int, str]:
    """Write pieces to an unbuffered file and hash them meanwhile; returns size and BLAKE3 (hexadecimal) of all.

    Args:
        sync: also sync written data to the disk early, so that little is left for the fsync that must follow.
    """
    # One thread hashes faster than a disk writes; more threads would only slow the writer down.
    hasher, size, unsynced = blake3(), 0, 0
    with ThreadPoolExecutor(2, thread_name_prefix="beside") as beside:
        syncing: Future[None] | None = None
        for piece in pieces:
            hashing = beside.submit(hasher.update, piece)
            left = piece
            while left.nbytes:
                left = left[file.write(left) or 0 :]
            size += piece.nbytes
            unsynced += piece.nbytes
            if sync and unsynced >= SYNC_BYTES and (syncing is None or syncing.done()):
                if syncing is not None:
                    syncing.result()
                syncing, unsynced = beside.submit(os.fdatasync, file.fileno()), 0
            hashing.result()
        if syncing is not None:
            # The kernel reports a failed write to the disk only once: here, not to the fsync that follows.
            syncing.result()
    return size, hasher.hexdigest()


def stream_digest(stream: Readable, most: float = math.inf) -> str:
    """BLAKE3 of the rest of a stream, in hexadecimal; `most` as for `hash_stream`."""
    return hash_stream(stream, most=most)[1]


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return stream_digest(file)
