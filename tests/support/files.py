"""Folders with small files, Git in them, and the permissions that they get."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
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


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Let new files have all permissions but those of the mask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
