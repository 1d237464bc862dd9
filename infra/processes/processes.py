"""Identify processes, run commands, and end every descendant of a started process, by a mark in the environment.

A process group or a session is not enough: torchrun puts each rank in a session of its own, and user code may do so
too. Every descendant inherits the mark, even after its parent has ended. Marks nest: a process started under two marks
carries both, so ending the outer mark ends all.

A process's id lets another process of the same machine see whether it has ended. Only what is certain counts: a process
of another machine or another PID namespace, or one that this user may not see, is never reported as ended, and neither
is one that is stopped. Without Linux's `/proc`, nothing is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from infra import stopping
from infra.machine import boot_id

log = logging.getLogger(__name__)
_TEXT = re.compile(r"([0-9a-f]{16})/([1-9][0-9]{0,9})/([0-9]{1,20})")
# Places of these fields in what `stat_fields` returns; see proc(5).
STATE, NUM_THREADS, STARTED = 0, 17, 19
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
MARK = "TRAINWRIGHT_MARK"
CODE_ROOT = Path(__file__).resolve().parents[2]
# A process in uninterruptible sleep (a wedged device) survives SIGKILL; waiting for it for ever would hang the flow.
UNKILLABLE_AFTER_S = 20.0
REAP_S = 5.0
_PR_SET_PDEATHSIG = 1
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_S = 0.05


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
        namespaces = [os.readlink("/proc/self/ns/pid"), _time_namespace()]
    except OSError:
        return None
    return hashlib.sha256("\0".join([boot_id(), *namespaces]).encode()).hexdigest()[:16]


def _time_namespace() -> str:
    """A process of another time namespace sees other start times; "" on a kernel without such namespaces."""
    try:
        return os.readlink("/proc/self/ns/time")
    except FileNotFoundError:
        return ""


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
    marked: set[int] = set()
    parents: dict[int, int] = {}
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.status() in _ENDED:
                continue
            parents[pid] = process.ppid()
            if mark in process.environ().get(MARK, "").split("/"):
                marked.add(pid)
    me = os.getpid()
    found = marked - {me}
    # A cleared environment does not hide a descendant.
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found and pid != me}:
        found |= more
    return sorted(found)


def kill_marked(mark: str) -> int:
    """Kill every process that carries `mark` and return how many there were.

    SIGKILL is repeated until two searches in a row find none, because a process that is forked during one search is
    found by the next.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + UNKILLABLE_AFTER_S
    empty = 0
    while empty < 2:
        pids = find_marked(mark)
        empty = 0 if pids else empty + 1
        seen.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
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
    try:
        return psutil.Process(pid).status() not in _ENDED
    except psutil.Error:
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


def run_to_end(
    command: Sequence[str],
    mark: str,
    environ: Mapping[str, str],
    *,
    stdout: int | IO[bytes],
    stderr: IO[bytes] | None = None,
    folder: Path | None = None,
    handles: Sequence[int] = (),
) -> int | None:
    """Run a command in a session of its own and return its exit code; None if it does not end even when killed.

    An exception in this process, including KeyboardInterrupt, ends every process with the mark first. Let
    `infra.processes.tied_to_parent` start the command: it then ends even if this process is killed.

    Args:
        mark: a new mark, which `environ` carries (`marked_env`).
        stderr: None: this process's own.
        folder: the command's working directory; None: this process's own.
        handles: file descriptors that the command inherits.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=handles,
        )
        while process.poll() is None:
            stopping.check()
            time.sleep(POLL_S)
    finally:
        with uninterrupted():
            code = end(mark, process)
    return code


class TiedProcess:
    """A module that runs in a process and session of its own, tied to this process.

    Args:
        mark: of the process and its descendants.
        output, log: the files that its standard output and its standard error replace.
    """

    def __init__(self, module: str, *arguments: str, mark: str, output: Path, log: Path) -> None:
        command = module_command("infra.processes.tied_to_parent", module, *arguments)
        with output.open("wb") as to_output, log.open("wb") as to_log:
            self._process = subprocess.Popen(
                command,
                env=marked_env(mark),
                stdin=subprocess.DEVNULL,
                stdout=to_output,
                stderr=to_log,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it works."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it and wait until it is gone; its descendants notice its end themselves."""
        self._process.kill()
        self._process.wait()

    def interrupt(self, grace_s: float) -> bool:
        """Interrupt it as Ctrl-C does; returns whether it ended within the time. Does nothing after its end."""
        if self._process.poll() is not None:
            return True
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return False
        return True
