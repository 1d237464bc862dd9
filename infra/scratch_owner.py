"""The note in a temporary folder: who made it and what for, locked while a process that needs the folder lives.

The kernel releases the lock when its last holder ends, so a folder whose note is not locked was left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import files
from infra.processes.processes import find_marked

NOTE = ".owner"
# As long as a lease: descendants of a process that was just killed may still be ending.
SWEEP_AFTER_S = 30.0
NOTE_BYTES = 4096
UNKNOWN_MAKER = "its maker is not known; remove it by hand if nothing uses it"


@dataclass(frozen=True)
class Leftover:
    """A temporary folder of this user that its maker did not remove.

    Attributes:
        made_for: its purpose, such as `child`; "" if unknown.
        why_kept: why the next command will not sweep it; "" if it will.
    """

    path: Path
    made_for: str
    age_s: float
    why_kept: str = ""

    @property
    def num_bytes(self) -> int:
        """Size of all files in it."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total


def write_note(folder: Path, made_for: str, mark: str) -> int:
    """Write the note of a new folder and lock it; returns its descriptor, which holds the lock.

    Args:
        made_for: the folder's purpose in one word.
        mark: the mark of the processes that use it (`infra.processes.processes`), if they are not this one.
    """
    handle = os.open(folder / NOTE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # no locks on this file system: never swept, as its use is unknown
        fcntl.flock(handle, fcntl.LOCK_EX)
    note = {"boot": _boot(), "host": platform.node(), "made_for": made_for, "mark": mark, "pid": os.getpid()}
    os.write(handle, json.dumps(note).encode())
    return handle


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Leftover | None]:
    """Lock a folder and describe it; None if it is in use. Of two sweepers, only the one with the lock removes it."""
    note = -1
    try:
        note = os.open(path / NOTE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        is_free = files.take(note)
        left = _described(path, json.loads(os.read(note, NOTE_BYTES)), _age_s(os.fstat(note))) if is_free else None
    except (FileNotFoundError, ValueError):
        left = _without_note(path)
    except OSError as error:
        left = Leftover(path, "", 0.0, f"it is not known whether it is in use ({error.strerror})")
    try:
        yield left
    finally:
        if note >= 0:
            os.close(note)


def _described(path: Path, note: Mapping[str, Any], age_s: float) -> Leftover | None:
    """Describe a folder by its note; None while its processes may still be ending."""
    made_for = str(note["made_for"])
    if note["boot"] != _boot() and note["host"] != platform.node():
        return Leftover(path, made_for, age_s, f"the host {note['host']} made it and will sweep it")
    if age_s < SWEEP_AFTER_S or (note["mark"] and find_marked(note["mark"])):
        return None
    return Leftover(path, made_for, age_s)


def _without_note(path: Path) -> Leftover | None:
    """Describe a folder without a readable note: it is being made, or an earlier version made it."""
    try:
        age_s = _age_s(os.lstat(path))
    except FileNotFoundError:
        return None
    return Leftover(path, "", age_s, UNKNOWN_MAKER) if age_s > SWEEP_AFTER_S else None


def _age_s(facts: os.stat_result) -> float:
    return time.time() - facts.st_mtime


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
