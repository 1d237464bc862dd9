"""Folders with small files, and Git in them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files, with the folders that they need, and return their root."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return root


def git(folder: Path, *arguments: str) -> str:
    """What Git prints, as somebody who may commit."""
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout
