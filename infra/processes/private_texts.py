"""Files for full texts that may hold a sensitive value: below the state folder, readable only by their owner.

The log of a process whose output is withheld is a link to such a file. A message that would quote such a log names the
file instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path

from infra.machine.settings import on_this_machine, state_folder

FOLDER = "withheld"
KEPT_S = 30 * 24 * 3600.0


def new_log(name: str) -> Path:
    """Make an empty file of mode 0600 with a unique name, after removing files older than KEPT_S."""
    folder = state_folder() / FOLDER
    with on_this_machine(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        _sweep(folder)
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        path = folder / f"{stamp}-{re.sub(r'[^a-z0-9_-]', '-', name.lower())}.txt"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return path


def rank_log(node_log: Path, rank: int) -> Path:
    """The file for a rank's output, beside that of its node."""
    return node_log.with_name(f"{node_log.stem}-rank-{rank}.txt")


def _sweep(folder: Path) -> None:
    for path in folder.iterdir():
        # Another process may have removed the file: it sweeps, too.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()
