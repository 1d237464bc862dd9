"""Checks that a folder which a command is to fill is new or empty."""

from __future__ import annotations

from pathlib import Path

from data_contracts.errors import UsageError


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
