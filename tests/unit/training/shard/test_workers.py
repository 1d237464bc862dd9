"""A few processes: results in order, the first item's error first, and nobody left when they or their parent die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from data_contracts.errors import NodeLost, UsageError
from infra.processes.processes import is_alive
from training.shard.two_passes import Workers

ROOT = Path(__file__).parents[4]


def first_waits(others: Path, item: int) -> tuple[int, int]:
    """The item and the process that had it; the first ends after another, which leaves the file `others`."""
    if item:
        others.touch()
    while not others.exists():
        time.sleep(0.01)
    return item, os.getpid()


def done_by(item: int) -> tuple[int, int]:
    return item, os.getpid()


def refuse_odd(item: int) -> int:
    time.sleep(0.3 if item == 1 else 0)
    if item % 2:
        raise UsageError(f"{item} is odd.", remedy="Take another.", details={"item": item})
    return item


def die(item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def add(more: int, item: int) -> int:
    return item + more


def test_results_come_in_the_items_order_from_other_processes(tmp_path: Path) -> None:
    with Workers(2) as workers:
        found = list(workers.map(partial(first_waits, tmp_path / "others"), iter(range(8))))
        assert [item for item, _ in found] == list(range(8))
        assert os.getpid() not in {pid for _, pid in found}
        assert len({pid for _, pid in found}) == 2
        workers.release()
        assert list(workers.map(partial(add, 5), [1, 2])) == [6, 7]


@pytest.mark.parametrize(("count", "items", "most"), [(1, [0, 1], None), (3, [0], None), (3, [0, 1], 1)])
def test_little_work_is_done_here(count, items, most):
    with Workers(count) as workers:
        assert list(workers.map(done_by, items, most)) == [(item, os.getpid()) for item in items]


def test_the_first_items_error_comes_first_as_it_was():
    with Workers(2) as workers, pytest.raises(UsageError, match="1 is odd") as caught:
        list(workers.map(refuse_odd, [0, 1, 3]))
    assert (caught.value.remedy, caught.value.details) == ("Take another.", {"item": 1})


def test_a_process_that_is_killed_is_said_so():
    with Workers(2) as workers, pytest.raises(NodeLost, match="was killed from outside"):
        list(workers.map(die, [0, 1]))


HELD = """
import sys, time
from functools import partial
from pathlib import Path
from infra.processes.processes import is_alive
from training.shard.two_passes import Workers
from tests.unit.training.shard.test_workers import first_waits
with Workers(2) as workers:
    print(*{pid for _, pid in workers.map(partial(first_waits, Path(sys.argv[1])), range(4))}, flush=True)
    time.sleep(60)
"""


def test_none_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELD, str(tmp_path / "others")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.02)
