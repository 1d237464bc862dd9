"""Descendants are found by their mark and ended, whatever session or parent they have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from infra.processes import processes
from infra.processes.processes import (
    MARK,
    end,
    find_marked,
    is_alive,
    kill_marked,
    marked_env,
    module_command,
    new_mark,
)
from tests.support.pool import until
from tests.support.processes import foreground

SLEEP = "import time; time.sleep(600)"
# What a descendant may do to get away: a session of its own, a dead parent, a cleared environment, deaf to SIGTERM.
ESCAPES = {
    "plain": SLEEP,
    "own session": f"import os; os.setsid(); {SLEEP}",
    "orphan": f"import os\nif os.fork(): os._exit(0)\nos.setsid(); {SLEEP}",
    "deaf": f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}",
    "no environment": f"import os, sys\nif os.fork(): {SLEEP}\nos.execve(sys.executable, ['p', '-c', '{SLEEP}'], {{}})",
}


@pytest.mark.parametrize("escape", ESCAPES)
def test_every_descendant_is_found_and_ended(escape: str, mark: str) -> None:
    script = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {ESCAPES[escape]!r}]); p.wait(); {SLEEP}"
    )
    top = subprocess.Popen([sys.executable, "-c", script], env=marked_env(mark))
    wanted = 3 if escape == "no environment" else 2
    until(lambda: len(find_marked(mark)) == wanted)
    pids = find_marked(mark)
    # At least: one that had just forked may have been seen before its parent ended.
    assert kill_marked(mark) >= wanted
    top.wait()
    assert find_marked(mark) == []
    until(lambda: not any(map(is_alive, pids)))


def test_a_process_that_keeps_forking_is_ended(mark: str) -> None:
    script = f"import subprocess, sys\nwhile True: subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}])"
    top = subprocess.Popen([sys.executable, "-c", script], env=marked_env(mark))
    until(lambda: len(find_marked(mark)) > 5)
    assert kill_marked(mark) > 5
    top.wait()
    assert find_marked(mark) == []


def test_marks_nest_and_do_not_match_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = new_mark(), new_mark()
    monkeypatch.setenv(MARK, outer)
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env=marked_env(inner))
    try:
        # The kernel shows a program's environment a moment after it has begun to run it.
        until(lambda: find_marked(inner) == [process.pid])
        assert find_marked(outer) == find_marked(inner) == [process.pid]
        assert find_marked(inner[:-1]) == find_marked(new_mark()) == []
    finally:
        kill_marked(inner)
        process.wait()


def test_neither_itself_nor_a_zombie_counts(monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    code = f"from infra.processes.processes import *; import sys; print(find_marked({mark!r}), kill_marked({mark!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=marked_env(mark), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]", "0"]
    zombie = subprocess.Popen([sys.executable, "-c", ""], env=marked_env(mark))
    until(lambda: not is_alive(zombie.pid))
    assert find_marked(mark) == []
    zombie.wait()
    assert not is_alive(zombie.pid)


@pytest.fixture
def in_foreground() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    foreground()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("in_foreground")
def test_a_signal_during_cleanup_waits_for_its_end() -> None:
    finished = []

    @processes.uninterrupted()
    def clean() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        clean()
    assert finished == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_off_the_main_thread_cleanup_just_runs() -> None:
    def clean() -> str:
        with processes.uninterrupted(), processes.terminable():
            return "done"

    with ThreadPoolExecutor() as pool:
        assert pool.submit(clean).result() == "done"


@pytest.mark.usefixtures("in_foreground")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminable_process_cleans_up(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), processes.terminable():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_the_environment_finds_our_modules_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path, mark: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.path.relpath(tmp_path))
    (tmp_path / "infra.py").write_text("raise SystemExit('the wrong infra')")
    environment = marked_env(mark, {"EXTRA": "1"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(repository), str(tmp_path)]
    assert environment["EXTRA"] == "1"
    command = module_command("infra.processes.processes", "argument")
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 0


def test_the_end_of_what_cannot_be_killed_is_said_and_not_waited_for(
    mark: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLEEP], env=marked_env(mark))
    until(lambda: find_marked(mark) == [process.pid])
    with monkeypatch.context() as patch:
        patch.setattr(processes, "REAP_S", 0.01)
        # Stands for a process in uninterruptible sleep: signals reach it, and it stays.
        patch.setattr(processes.os, "kill", lambda pid, number: None)
        patch.setattr(processes, "UNKILLABLE_AFTER_S", 0)
        assert kill_marked(mark) == 1
        assert end(mark, process) is None
    assert "do not end after SIGKILL" in caplog.text
    assert end(mark, process) == -signal.SIGKILL
    assert end(mark, None) is None


@pytest.mark.parametrize(("vmstat", "kills"), [("a 1\noom_kill 7\nb 2", 7), ("a 1\n", 0), (None, 0)])
def test_kills_for_memory_are_counted(vmstat: str | None, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(return_value=vmstat) if vmstat is not None else Mock(side_effect=FileNotFoundError)
    monkeypatch.setattr(processes.Path, "read_text", read)
    assert processes.oom_kills() == kills
