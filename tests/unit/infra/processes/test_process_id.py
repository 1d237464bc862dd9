"""Whether a process has ended is said only when it is certain."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.processes import processes
from infra.processes.processes import ProcessId, has_ended, this_process
from tests.support.processes import a_process, identified

NAMESPACES = os.geteuid() == 0 and shutil.which("unshare") is not None
needs_namespaces = pytest.mark.skipif(not NAMESPACES, reason="namespaces need root and unshare")
# Prints what it sees of the process that its argument names.
LOOK = (
    "import sys\nfrom infra.processes.processes import *\n"
    "print(this_process(), has_ended(ProcessId.parse(sys.argv[1])))"
)


def test_it_is_written_and_read() -> None:
    mine = this_process()
    assert (mine.pid, ProcessId.parse(str(mine))) == (os.getpid(), mine)
    for text in (
        "",
        "x",
        "0" * 16,
        f"{mine.place}/-1/5",
        f"{mine.place}/01/5",
        f"{mine.place}/1/5/",
        "g" * 16 + "/1/5",
    ):
        assert ProcessId.parse(text) is None
    assert has_ended(replace(mine, pid=9_999_999_999)) is False, "no machine has this pid"


def test_only_a_process_that_was_killed_has_ended_also_before_its_parent_notices() -> None:
    assert not has_ended(this_process())
    with a_process() as process:
        known = identified(process)
        assert not has_ended(known)
        assert has_ended(replace(known, started=known.started - 1)), "a later process with its pid is another"
        process.send_signal(signal.SIGSTOP)
        assert not has_ended(known)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert has_ended(known)
        process.wait()
        assert has_ended(known)


def test_a_zombie_with_a_thread_that_still_runs_has_not_ended() -> None:
    # The first thread ends alone, by the system call, while another one lives.
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print(flush=True)\n"
        f"ctypes.CDLL(None).syscall({ {'x86_64': 60, 'aarch64': 93}[os.uname().machine] }, 0)"
    )
    with a_process(code) as process:
        known = identified(process)
        while processes.stat_fields(process.pid)[0] != "Z":
            pass
        assert not has_ended(known)


HIDDEN: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "another machine or namespace": lambda patch: patch.setattr(processes, "_place", lambda: "0" * 16),
    "no /proc": lambda patch: patch.setattr(processes, "_place", lambda: None),
    "another user, behind hidepid": lambda patch: (
        patch.setattr(os, "kill", refuse),
        patch.setattr(processes, "stat_fields", lambda pid: None),
    ),
}


def refuse(pid: int, number: int) -> None:
    raise PermissionError


@pytest.mark.parametrize("how", HIDDEN)
def test_of_what_it_cannot_see_nothing_is_said(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_process() as process:
        known = identified(process)
        if "user" not in how:
            process.kill()
            process.wait()
        with monkeypatch.context() as patch:
            HIDDEN[how](patch)
            assert not has_ended(known)


@needs_namespaces
@pytest.mark.parametrize("options", [["--mount-proc"], []], ids=["its own /proc", "the host's /proc"])
def test_a_container_sees_nothing_of_its_host(options: list[str]) -> None:
    """The same boot id, but other numbers: there, the host's process does not exist."""
    mine = this_process()
    done = subprocess.run(
        ["unshare", "--pid", "--fork", *options, sys.executable, "-c", LOOK, str(mine)],
        capture_output=True,
        text=True,
        check=True,
    )
    seen, ended = done.stdout.split()
    assert ended == "False"
    assert seen.partition("/")[0] != mine.place
    assert (seen == "None") is (not options), "the numbers in the host's /proc are another process's"


def test_another_users_process_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not be signalled, but its state can be read."""
    with a_process() as process:
        known = identified(process)
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refuse)
            assert not has_ended(known)
            assert has_ended(replace(known, started=known.started - 1))
