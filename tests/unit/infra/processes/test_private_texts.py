"""Logs that are withheld: who can read them, how long they stay, and that nothing quotes them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import TrainwrightError
from infra.child import log_tail, run_child
from infra.gang import ranks
from infra.gang.rank_files import RankFiles
from infra.gang.ranks import RankLogs, RankWatch, kept_log
from infra.processes.environment import KEPT_S, new_log
from infra.store import Store
from tests.support.child_module import CHILD, Ask
from tests.support.files import umask

MODULE = CHILD.module
SECRET = "Jane Doe"


def kept(home: Path) -> list[Path]:
    return sorted((home / "withheld").glob("*"))


def test_a_log_is_its_owner_s_alone_and_goes_after_a_month(home: Path) -> None:
    with umask(0):
        old = new_log("old")
        os.utime(old, times=(time.time() - KEPT_S - 60,) * 2)
        young = [new_log("rank/0 of Ours"), new_log("rank/0 of Ours")]
    assert kept(home) == sorted(young)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home / "withheld", *young)] == [0o700, 0o600, 0o600]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"do": "bug"}, f"{MODULE} failed: ZeroDivisionError at support/child_module.py:"),
        ({"do": "exit", "exit_code": 3}, f"{MODULE} ended with exit code 3 and no answer. What it printed is in "),
        ({"do": "signal", "signal": "SIGKILL"}, f"{MODULE} was ended by SIGKILL. What it printed is in "),
    ],
)
def test_what_a_child_printed_is_named_and_not_quoted(request_: dict[str, Any], message: str, home: Path) -> None:
    with pytest.raises(TrainwrightError) as caught:
        run_child(CHILD, Ask(**request_, print=SECRET), withhold=True)
    [log] = kept(home)
    assert caught.value.message.startswith(message)
    assert str(log) in caught.value.message
    assert SECRET not in str(caught.value.to_json())
    assert "a bug of ours" not in str(caught.value.to_json())
    assert SECRET in log.read_text()


def test_a_log_that_nothing_names_goes_and_a_process_that_withholds_has_its_children_do_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_child(CHILD, Ask(print=SECRET), withhold=True)
    assert kept(home) == []
    monkeypatch.setenv("TRAINWRIGHT_WITHHELD", str(home / "mine.txt"))
    with pytest.raises(TrainwrightError):
        run_child(CHILD, Ask(do="bug"))
    assert len(kept(home)) == 1


@pytest.fixture
def rank(home: Path, tmp_path: Path) -> Path:
    """The withheld log of rank 0, whose scratch folder is `tmp_path`."""
    log = new_log("rank-0")
    log.write_text(f"{SECRET}\n")
    RankFiles(tmp_path, 0).log.symlink_to(log)
    return log


def test_the_store_says_where_a_rank_s_log_is(
    rank: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "EVERY_S", 0.0)
    files = RankFiles(tmp_path, 0)
    logs = RankLogs(store, ("trainings/k-0", 0, 0))
    for _ in range(3):
        with rank.open("a") as stream:
            stream.write(f"{SECRET}\n")
        logs.add([files])
        assert kept_log(store, "trainings/k-0", 0, 0, 0) == log_tail(RankFiles(tmp_path, 0).log)
    logs.end([files])
    told = kept_log(store, "trainings/k-0", 0, 0, 0)
    assert told.startswith(f"What it printed is in {rank} on ")


def test_a_lost_rank_is_reported_without_its_output(rank: Path, tmp_path: Path) -> None:
    RankFiles(tmp_path, 0).write_process(999999999)
    error = RankWatch([RankFiles(tmp_path, 0)]).look()
    assert error.message.startswith(f"Rank 0 ended without an answer. What it printed is in {rank} on ")
    assert SECRET not in str(error.to_json())


# Another thread's prints come between the pieces in which faulthandler writes a line.
PRINTS = """
import os, sys, threading
from infra.gang.ranks import answer_with_stacks

os.dup2(os.open(os.environ["TRAINWRIGHT_WITHHELD"], os.O_WRONLY | os.O_APPEND), 2)

def deep(depth):
    if depth:
        deep(depth - 1)
    threading.Event().wait()

answer_with_stacks(ANSWERS)
for _ in range(4):
    threading.Thread(target=deep, args=(60,), daemon=True).start()
if os.fork():
    print(os.getpid(), flush=True)
    deep(60)
parent = os.getppid()
while os.getppid() == parent:
    os.write(2, b"SECRET\\n")
"""


def test_what_a_rank_prints_does_not_mix_with_its_stacks(
    rank: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "MOST_BYTES", 2**26)
    monkeypatch.setattr(ranks, "WAIT_S", 120.0)
    monkeypatch.setenv("TRAINWRIGHT_WITHHELD", str(rank))
    program = PRINTS.replace("ANSWERS", repr(str(RankFiles(tmp_path, 0).stack))).replace("SECRET", SECRET)
    (tmp_path / "rank.py").write_text(program)
    root = Path(ranks.__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "rank.py")], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as process:
        try:
            process.stdout.readline()
            RankFiles(tmp_path, 0).write_process(process.pid)
            found = ranks.take_stacks([RankFiles(tmp_path, 0)])[0]
        finally:
            process.kill()
    assert "in deep" in found
    assert SECRET not in found
