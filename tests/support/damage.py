"""Writes over a file of a store in place, as root or a failing disk would: what a store holds is read-only."""

from __future__ import annotations

from pathlib import Path


def overwrite(path: Path, data: bytes | str) -> None:
    """Give the file other bytes without making a new one; a file that is not there yet is made."""
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
