"""Folders with small files, Git in them, and the permissions that they get."""

from __future__ import annotations

import contextlib
import os
import shutil
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


# What runs leave in a copy that has no repository.
LEFT_BY_RUNS = {".git", ".venv", ".docs", ".trainwright", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def tracked_files(root: Path) -> list[str]:
    """The files that Git tracks or would, relative to `root`; without a repository, all but what runs leave."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if listed.returncode == 0:
        return [name for name in listed.stdout.decode().split("\0") if (root / name).is_file()]
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return [str(path) for path in found if not LEFT_BY_RUNS & set(path.parts) and "data" not in path.parts]


def copy_tracked(root: Path, to: Path) -> None:
    """Copy the files that Git tracks or would."""
    for name in tracked_files(root):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Let new files have all permissions but those of the mask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
