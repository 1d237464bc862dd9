"""Checks that a folder which a command is to fill is new or empty, and marks it as Trainwright's own."""

from __future__ import annotations

from pathlib import Path

from data_contracts.errors import UsageError

# Marks a folder with all that is in it, as CACHEDIR.TAG marks a cache.
TAG = "TRAINWRIGHT.TAG"
_TEXT = "Trainwright wrote what is in this folder. None of it is packed into a bundle of code.\n"


def check_new(folder: Path, remedy: str) -> None:
    """UsageError with this remedy if the folder is a link or a file, is not empty, or cannot be looked into."""
    try:
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link, which is not followed.", remedy=remedy)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file.", remedy=remedy)
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty.", remedy=remedy)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}.", remedy=remedy) from error


def tag(folder: Path) -> None:
    """Mark a folder; the mark stays if it is there already."""
    if not (folder / TAG).exists():
        (folder / TAG).write_text(_TEXT)
