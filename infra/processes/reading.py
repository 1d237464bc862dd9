"""Says which file and row a process is reading, so that its parent can say what it read when it died.

`infra.child` names the file in which it is noted; elsewhere nothing is noted.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

READING = "TRAINWRIGHT_READING"


def note(file: str, row: int) -> None:
    """Note that a row is about to be read. A later note, also of another process, takes the place of this one."""
    if path := os.environ.get(READING):
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps([file, row]))


def noted(path: Path) -> tuple[str, int] | None:
    """The file and the row, from 0, that were noted last; None if none were, or if the process died meanwhile."""
    try:
        file, row = json.loads(path.read_text())
        return str(file), int(row)
    except (OSError, ValueError):
        return None
