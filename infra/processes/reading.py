"""Says which file and row a process is reading, so that its parent can say what it read when it died.

`infra.child` names the file in which it is noted; elsewhere nothing is noted.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

READING = "TRAINWRIGHT_READING"


@dataclass(frozen=True)
class Position:
    """A raw file, and the row that was to be read next, from 0."""

    file: str
    row: int


def note(file: str, row: int) -> None:
    """Note that a row is about to be read. A later note, also of another process, takes the place of this one."""
    if path := os.environ.get(READING):
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps([file, row]))


def noted(path: Path) -> Position | None:
    """What was noted last; None if nothing was, or if the process died while it noted it."""
    try:
        file, row = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return Position(file, row)
