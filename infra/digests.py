"""BLAKE3 digests of bytes, the identity of raw and sealed files."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

_PIECE = 1 << 22


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes in hexadecimal, read in pieces."""
    with path.open("rb") as file:
        return stream_digest(file)


def stream_digest(stream: BinaryIO) -> str:
    """BLAKE3 of what is left of a stream, in hexadecimal, read in pieces."""
    hasher = blake3(max_threads=blake3.AUTO)
    while piece := stream.read(_PIECE):
        hasher.update(piece)
    return hasher.hexdigest()
