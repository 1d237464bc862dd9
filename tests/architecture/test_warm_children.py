"""A child that is forked from a warm process (`tests/support/speed/children.py`) looks and ends as a new one."""

from __future__ import annotations

import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.processes.processes import find_marked, marked_env, module_command, new_mark
from tests.support.speed.children import ADDRESS, PREFECT, ROOT, SITE, import_path, warm_children, warm_prefect
from tests.support.speed.prefect_modules import RUN
from tests.support.waiting import until

# How a child and how one of Prefect's processes starts.
MIRRORED = {
    ADDRESS: lambda way: module_command("tests.support.mirrored", way, "/answer.json"),
    PREFECT: lambda way: [sys.executable, "-m", "tests.support.mirrored", way],
}


def _start(way: str, folder: Path, mark: str, kind: str = ADDRESS, **changes: str) -> subprocess.Popen[bytes]:
    command = MIRRORED[kind](way)
    env = marked_env(mark, {"PYTHONPATH": import_path(), **changes})
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def _seen(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    return dict(json.loads(process.stdout.readline()))


@pytest.mark.parametrize(
    ("kind", "way"), [(ADDRESS, "exit"), (ADDRESS, "raise"), (ADDRESS, "die"), (PREFECT, "exit"), (PREFECT, "raise")]
)
def test_what_it_sees_and_how_it_ends_are_the_same(kind: str, way: str, tmp_path: Path) -> None:
    with warm_children() if kind == ADDRESS else warm_prefect():
        marks = new_mark(), new_mark()
        warm, fresh = _start(way, tmp_path, marks[0], kind), _start(way, tmp_path, marks[1], kind, **{kind: ""})
    seen, expected = _seen(warm), _seen(fresh)
    for process in (warm, fresh):
        process.communicate(timeout=480)
    assert warm.returncode == fresh.returncode == {"exit": 7, "raise": 1, "die": -signal.SIGKILL}[way]
    assert (seen.pop("warm"), expected.pop("warm")) == (True, False)  # one was forked, the other was not
    assert seen.pop("pid") != warm.pid
    assert expected.pop("pid") == fresh.pid
    for one, mark in ((seen, marks[0]), (expected, marks[1])):
        one["environ"] = [entry.replace(mark, "MARK") for entry in one["environ"] if not entry.startswith(kind)]
    assert seen == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 9), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_reach_it_and_it_is_found_by_its_mark_and_dies_with_the_process_that_stands_for_it(
    number: int, code: int, tmp_path: Path
) -> None:
    mark = new_mark()
    with warm_children():
        process = _start("wait", tmp_path, mark)
    pid = _seen(process)["pid"]
    assert set(find_marked(mark)) == {process.pid, pid}
    process.send_signal(number)
    process.communicate(timeout=480)
    assert process.returncode == code
    until(lambda: not find_marked(mark), 60)


def test_one_that_is_killed_before_it_is_answered_takes_no_other_with_it(tmp_path: Path) -> None:
    with warm_children():
        process = _start("wait", tmp_path, new_mark())
        assert _seen(process)["warm"]
        for _ in range(3):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
                channel.connect(os.environ[ADDRESS])
                socket.send_fds(channel, [b"r"], [])
                request = {"executable": "of another", "environment": {}, "line": []}
                channel.sendall(json.dumps(request).encode() + b"\n")
        later = _start("exit", tmp_path, new_mark())
        assert _seen(later)["warm"]
        later.communicate(timeout=480)
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=480)


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))


@pytest.mark.parametrize(
    ("kind", "changes", "limit", "is_forked"),
    [
        # A worker puts the folder of each flow run, which is empty, before all others.
        (ADDRESS, {"PYTHONPATH": "empty"}, None, True),
        (ADDRESS, {"PYTHONPATH": "."}, None, False),
        (ADDRESS, {"PYTHONPATH": "/elsewhere"}, None, False),
        (ADDRESS, {"PYTHONWARNINGS": "error"}, None, False),
        (ADDRESS, {"LANG": "de_DE"}, None, False),
        (ADDRESS, {}, _few_files, False),
        (PREFECT, {"PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1"}, None, False),
    ],
)
def test_what_is_read_on_import_or_limited_needs_a_process_of_its_own(
    kind: str, changes: dict[str, str], limit: Callable[[], None] | None, is_forked: bool, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with warm_children() if kind == ADDRESS else warm_prefect():
        added = [str(tmp_path / changes["PYTHONPATH"])] if "PYTHONPATH" in changes else []
        env = {**os.environ, **changes, "PYTHONPATH": os.pathsep.join([*added, import_path()])}
        command = MIRRORED[kind]("exit")
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False, preexec_fn=limit)
    assert done.returncode == 7
    assert json.loads(done.stdout)["warm"] is is_forked


def test_every_module_of_ours_that_may_be_forked_exists() -> None:
    """Otherwise its processes would start as usual, and only take longer."""
    named = {*runpy.run_path(str(SITE / "sitecustomize.py"))["MODULES"], *RUN}
    ours = [name for name in named if not name.startswith(("prefect.", "torch."))]
    assert len(ours) > 10
    assert [name for name in ours if not ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file()] == []
