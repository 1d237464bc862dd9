"""The stacks of ranks that hang: printed by the ranks themselves, and for those that cannot, why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.gang import ranks
from infra.gang.rank_files import RankFiles
from infra.gang.ranks import take_stacks
from infra.processes.processes import state
from tests.support.pool import until

PROGRAM = """
import sys, time
from infra.gang.ranks import answer_with_stacks
answer_with_stacks()
print("ready", flush=True)
def waits_for_ever():
    time.sleep(600)
waits_for_ever()
"""


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    started = []

    def start(number: int) -> subprocess.Popen[bytes]:
        files = RankFiles(tmp_path, number)
        with files.log.open("wb") as output:
            process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=output, stderr=output)
        started.append(process)
        until(lambda: b"ready" in files.log.read_bytes())
        files.write_process(process.pid)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_each_rank_says_where_it_stands_or_why_it_cannot(
    rank: Callable[[int], subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "WAIT_S", 120.0)
    sleeping, stopped = rank(0), rank(1)
    os.kill(stopped.pid, signal.SIGSTOP)
    until(lambda: state(stopped.pid) == "T")
    found = take_stacks(RankFiles(tmp_path, number) for number in range(3))
    assert "in waits_for_ever" in found[0]
    assert "ready" not in found[0], "what it printed before is not part of it"
    assert found[1] == f"Process {stopped.pid} is stopped (SIGSTOP), so it cannot say."
    assert found[2] == "It has no process."
    assert sleeping.poll() is None, "asking ends nothing"
    assert "in waits_for_ever" in RankFiles(tmp_path, 0).log.read_text()
