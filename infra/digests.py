"""BLAKE3 digests of bytes, the identity of raw and sealed files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from blake3 import blake3

PIECE_BYTES = 2**22


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, all that is left if it is negative; b"" at the end."""


def hash_stream(stream: Readable, *sinks: Callable[[bytes], object]) -> tuple[int, str]:
    """Size and BLAKE3 (hexadecimal) of what is left of a stream; every piece is given to the sinks as well."""
    hasher = blake3(max_threads=blake3.AUTO)
    size = 0
    while piece := stream.read(PIECE_BYTES):
        hasher.update(piece)
        size += len(piece)
        for sink in sinks:
            sink(piece)
    return size, hasher.hexdigest()


def stream_digest(stream: Readable) -> str:
    """BLAKE3 of what is left of a stream, in hexadecimal."""
    return hash_stream(stream)[1]


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return stream_digest(file)
