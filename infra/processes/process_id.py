"""Identify a process so that another process of the same machine can see whether it has ended.

Only what is certain counts. A process of another machine or another PID namespace, or one that this user may not see,
is never reported as ended, and neither is one that is stopped. Without Linux's `/proc`, nothing is known.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_TEXT = re.compile(r"([0-9a-f]{16})/([1-9][0-9]{0,9})/([0-9]{1,20})")
# Places of these fields in what `stat_fields` returns; see proc(5).
STATE, PARENT, NUM_THREADS, STARTED = 0, 1, 17, 19


@dataclass(frozen=True)
class ProcessId:
    """A process, identified uniquely on its machine.

    Attributes:
        place: digest of the machine's boot, the PID namespace and the time namespace.
        started: when the process started, in clock ticks since the boot; distinguishes it from a later process with the
          same pid.
    """

    place: str
    pid: int
    started: int

    def __str__(self) -> str:
        return f"{self.place}/{self.pid}/{self.started}"

    @classmethod
    def parse(cls, text: str) -> ProcessId | None:
        """The process that `str` wrote; None for any other text."""
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(match[1], int(match[2]), int(match[3]))


def this_process() -> ProcessId | None:
    """This process; None where a process cannot be identified (no `/proc`, or that of another PID namespace)."""
    place, fields = _place(), stat_fields(os.getpid())
    return None if place is None or fields is None else ProcessId(place, os.getpid(), int(fields[STARTED]))


def has_ended(process: ProcessId) -> bool:
    """Whether a process is known to have ended; False if this process cannot tell."""
    if process.place != _place():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    fields = stat_fields(process.pid)
    if fields is None:
        # It belongs to another user, and /proc hides it (hidepid).
        return False
    # Threads of a process that is being killed may outlive its first thread for a while, and still write.
    is_zombie = fields[STATE] in ("Z", "X") and int(fields[NUM_THREADS]) <= 1
    return is_zombie or int(fields[STARTED]) != process.started


def stat_fields(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` behind the command's name; None if there is no such process or it is hidden."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses and may itself hold any character.
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > STARTED else None


def _place() -> str | None:
    try:
        # In a PID namespace without a /proc of its own, numbers in /proc are those of other processes.
        if os.readlink("/proc/self") != str(os.getpid()):
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = [os.readlink("/proc/self/ns/pid"), _time_namespace()]
    except OSError:
        return None
    return hashlib.sha256("\0".join([boot, *namespaces]).encode()).hexdigest()[:16]


def _time_namespace() -> str:
    """A process of another time namespace sees other start times; "" on a kernel without such namespaces."""
    try:
        return os.readlink("/proc/self/ns/time")
    except FileNotFoundError:
        return ""
