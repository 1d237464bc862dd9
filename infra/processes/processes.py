"""Find and end every descendant of a started process, by a mark in the environment.

A process group or a session is not enough: torchrun puts each rank in a session of its own, and user code may do so
too. Every descendant inherits the mark, even after its parent has ended. Marks nest: a process started under two marks
carries both, so ending the outer mark ends all.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from infra.processes.process_id import PARENT, STATE, stat_fields

MARK = "TRAINWRIGHT_MARK"
CODE_ROOT = Path(__file__).resolve().parents[2]
# A process in uninterruptible sleep (a wedged device) survives SIGKILL; waiting for it for ever would hang the flow.
UNKILLABLE_AFTER_S = 20.0
REAP_S = 5.0
_PR_SET_PDEATHSIG = 1
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

log = logging.getLogger(__name__)


def new_mark() -> str:
    """A mark that no other process carries."""
    return uuid.uuid4().hex


def marked_env(
    mark: str, extra: Mapping[str, str] | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """This process's environment with `mark` added to its marks, for a Python child of ours.

    Import paths are made absolute, with our own root first, because the child has another working directory.

    Args:
        environ: the base variables of the child.
    """
    inherited = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    paths = dict.fromkeys([str(CODE_ROOT), *inherited])
    marks = [part for part in os.environ.get(MARK, "").split("/") if part]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths), **(extra or {}), MARK: "/".join([*marks, mark])}


def module_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Command line that runs one of our modules; `-P` keeps the working directory off the import path.

    Args:
        python: the interpreter; default this process's.
    """
    return [python, "-P", "-u", "-m", module, *arguments]


def find_marked(mark: str) -> list[int]:
    """Ids of all live processes that carry `mark`, or descend from one that does; not this process, not zombies."""
    return _find_in_proc(mark) if Path("/proc/self/environ").exists() else _find_with_psutil(mark)


def kill_marked(mark: str, grace_s: float = 0.0) -> int:
    """End every process that carries `mark` and return how many there were.

    With a grace they get SIGTERM first. SIGKILL is repeated until two searches in a row find none, because a process
    that is forked during one search is found by the next.
    """
    seen: set[int] = set(find_marked(mark))
    if grace_s > 0:
        _signal(seen, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while find_marked(mark) and time.monotonic() < deadline:
            time.sleep(0.02)
    deadline = time.monotonic() + UNKILLABLE_AFTER_S
    empty = 0
    while empty < 2:
        pids = find_marked(mark)
        empty = 0 if pids else empty + 1
        seen.update(pids)
        _signal(pids, signal.SIGKILL)
        if pids and time.monotonic() > deadline:
            log.error("processes %s do not end after SIGKILL; the machine may need a restart", pids)
            break
        if pids:
            time.sleep(0.01)
    return len(seen)


def end(mark: str, process: subprocess.Popen[bytes] | None) -> int | None:
    """`kill_marked`, then return the exit code of `process`, which was started with the mark (None: no process).

    None if the process does not end even then: waiting for it for ever would hang the cleanup.
    """
    kill_marked(mark)
    if process is None:
        return None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)
    return process.returncode


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    if Path("/proc/self/stat").exists():
        fields = stat_fields(pid)
        return fields is not None and fields[STATE] not in ("Z", "X")
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def state(pid: int) -> str:
    """Letter of a process's state on Linux (`T`: stopped); "" if there is no such process or no such information."""
    fields = stat_fields(pid)
    return "" if fields is None else fields[STATE]


def oom_kills() -> int:
    """How often this machine's kernel has killed a process for lack of memory; 0 if it does not count this."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux; no effect elsewhere)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back SIGINT, SIGTERM and SIGHUP during cleanup; they are delivered at the end. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in _DEFERRED}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python, which cannot be restored from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if arrived:
            signal.raise_signal(arrived[0])


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Turn a SIGTERM or SIGHUP that would end this process at once into KeyboardInterrupt, so that cleanup runs."""
    mine: list[int] = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
        for number in mine:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def _signal(pids: set[int] | list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _find_in_proc(mark: str) -> list[int]:
    marked: set[int] = set()
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        fields = stat_fields(pid)
        if fields is None or fields[STATE] in ("Z", "X"):
            continue
        parents[pid] = int(fields[PARENT])
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if _carries(environ, mark):
            marked.add(pid)
    return _with_descendants(marked, parents)


def _find_with_psutil(mark: str) -> list[int]:
    import psutil

    marked: set[int] = set()
    parents: dict[int, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            parents[process.pid] = process.ppid()
            if mark in process.environ().get(MARK, "").split("/"):
                marked.add(process.pid)
    return _with_descendants(marked, parents)


def _carries(environ: bytes, mark: str) -> bool:
    prefix = f"{MARK}=".encode()
    return any(
        mark.encode() in entry[len(prefix) :].split(b"/") for entry in environ.split(b"\0") if entry.startswith(prefix)
    )


def _with_descendants(marked: set[int], parents: dict[int, int]) -> list[int]:
    """`marked` and their descendants, without this process; a cleared environment does not hide a descendant."""
    me = os.getpid()
    found = marked - {me}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found and pid != me}:
        found |= more
    return sorted(found)
