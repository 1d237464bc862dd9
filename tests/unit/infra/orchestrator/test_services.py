"""A service is ours only while its process carries its mark; whatever else has that pid is left alone."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from infra.orchestrator import server
from infra.orchestrator.server import Service
from infra.processes.processes import find_marked
from tests.support.pool import until

URL = "http://127.0.0.1:4210/api"
# Says that it is ready, by a file, and waits to be ended.
WAITS = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"


def start(mark: str, code: str, *arguments: str, wait: Callable[[Service], None] = lambda _: None) -> Service:
    command = [sys.executable, "-c", code, *arguments]
    return server.start_service("worker", command, mark=mark, env=server.service_environment(mark), url=URL, wait=wait)


def has_ended(service: Service) -> None:
    """Wait for its end while it is still a child of ours: soon after, it may have been forgotten."""
    psutil.Process(service.pid).wait()


def test_what_a_service_started_ends_with_it_even_in_a_session_of_its_own(
    home: Path, mark: str, tmp_path: Path
) -> None:
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"
    started = start(mark, f"{child}; import time; time.sleep(600)", WAITS, str(tmp_path / "ready"))
    until((tmp_path / "ready").exists)
    assert len(find_marked(mark)) == 2
    started.stop(grace_s=10)
    assert find_marked(mark) == []


def test_a_service_that_ignores_the_signal_is_killed(home: Path, mark: str, tmp_path: Path) -> None:
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"
    started = start(mark, deaf, str(tmp_path / "ready"))
    until((tmp_path / "ready").exists)
    assert started.stop(grace_s=0.2)
    assert find_marked(mark) == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"pid": 1}', json.dumps({"pid": 1, "mark": "", "url": "", "x": 1})]
)
def test_a_state_file_that_cannot_be_read_counts_as_absent(home: Path, content: str) -> None:
    home.mkdir()
    (home / "worker.json").write_text(content)
    assert server.read_service("worker") is None
    assert server.running_service("worker") is None


def test_a_service_hears_signals_although_the_shell_that_started_us_ignores_them(
    home: Path, mark: str, tmp_path: Path
) -> None:
    report = "import pathlib, signal, sys; pathlib.Path(sys.argv[1]).write_text(str(signal.getsignal(signal.SIGINT)))"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        start(mark, report, str(tmp_path / "handler"), wait=has_ended)
    finally:
        signal.signal(signal.SIGINT, before)
    # Python sets its own handler only where the inherited one is not SIG_IGN.
    assert "default_int_handler" in (tmp_path / "handler").read_text()


def test_the_log_of_the_service_before_is_kept_and_a_service_runs_in_the_state_folder(home: Path, mark: str) -> None:
    for line in ("'first'", "os.getcwd()"):
        started = start(mark, f"import os; print({line}, end='\\n\\n')", wait=has_ended)
    assert Path(started.last_words()) == home.resolve(), "not the folder of whoever started it"
    assert (home / "worker.previous.log").read_text().strip() == "first"
    assert Service("server", 1, mark, URL).last_words() == ""
