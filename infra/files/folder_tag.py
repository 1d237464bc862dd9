"""A file that marks a folder as Trainwright's own, with all that is in it, as CACHEDIR.TAG marks a cache."""

from __future__ import annotations

from pathlib import Path

TAG = "TRAINWRIGHT.TAG"
_TEXT = "Trainwright wrote what is in this folder. None of it is packed into a bundle of code.\n"


def tag(folder: Path) -> None:
    """Mark a folder; the mark stays if it is there already."""
    if not (folder / TAG).exists():
        (folder / TAG).write_text(_TEXT)
