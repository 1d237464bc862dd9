"""BLAKE3 digests of files, the identity of raw and sealed bytes."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes in hexadecimal, read in pieces."""
    hasher = blake3()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return hasher.hexdigest()
