"""Temporary folders: removed however the process ends, swept if it was killed, and closed to other users.

Real processes are killed in the middle of their work; "the next command" is a command line of its own.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra import scratch
from infra.files import file_digest
from infra.machine import boot_id
from infra.processes.processes import find_marked, kill_marked, marked_env, new_mark
from infra.scratch import NOTE, SWEEP_AFTER_S
from infra.store import Store
from tests.support.files import write_files
from tests.support.pool import until

ROOT = Path(__file__).parents[3]
SECRET = "raw-row-of-a-person"
PARENT = """
import json, sys
from data_contracts.errors import TrainwrightError
from data_contracts.messages.raw_data import SHARD
from infra.child import run_child
from tests.support.child_module import CHILD, Hanging
child = {one.module: one for one in (SHARD, CHILD)}[sys.argv[1]]
request = child.request.from_json(json.load(open(sys.argv[2])))
try:
    run_child(child, request, on_report={Hanging: lambda report: print(json.dumps({"hanging": True}), flush=True)})
except TrainwrightError as error:
    print(json.dumps({"ended": error.cause}), flush=True)
"""
# Says when rows lie in the temporary folder, and stays there.
TRANSFORM = """
import tempfile, time
from pathlib import Path

def stay(batch, there):
    while list(Path(tempfile.gettempdir()).rglob("*.arrow")):
        Path(there).touch()
        time.sleep(0.01)
    return batch
"""


@dataclass
class Machine:
    """A TMPDIR that all users share, a state folder, and the processes that were started with them."""

    folder: Path
    mark: str = field(default_factory=new_mark)

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    def env(self) -> dict[str, str]:
        return marked_env(self.mark, {"TMPDIR": str(self.tmp), "TRAINWRIGHT_HOME": str(self.folder / "home")})

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, *command], env=self.env(), stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def parent(self, module: str, request: dict) -> subprocess.Popen[str]:
        """A process that has `module` done by a child."""
        path = self.folder / "request.json"
        path.write_text(json.dumps(request))
        return self.start("-c", PARENT, module, str(path))

    def hanging(self) -> tuple[subprocess.Popen[str], Path]:
        """A parent whose child hangs, and the child's folder."""
        before = set(self.left())
        parent = self.parent("tests.support.child_module", {"do": "hang"})
        assert json.loads(parent.stdout.readline()) == {"hanging": True}
        [folder] = set(self.left()) - before
        return parent, folder

    def next_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a person calls next: `doctor` by default, which removes nothing, or another."""
        command = [sys.executable, "-m", "flows.cli", *(arguments or ("schema",))]
        return subprocess.run(command, env=self.env(), capture_output=True, text=True, cwd=ROOT, check=False)

    def left(self) -> list[Path]:
        return sorted(self.tmp.iterdir())


def age(path: Path, by_s: float = 10 * SWEEP_AFTER_S) -> None:
    """Make a file or folder older than a lease, or younger by a negative age."""
    os.utime(path, (time.time() - by_s,) * 2)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    machine.tmp.mkdir()
    machine.tmp.chmod(0o1777)
    yield machine
    kill_marked(machine.mark)


@pytest.fixture
def sharding(tmp_path: Path, store: Store) -> dict:
    """A request to shard more rows than memory is permitted, by a transform that stays once some lie on the disk."""
    raw, project = tmp_path / "raw.csv", tmp_path / "project"
    rows = "".join(f"{n},{SECRET}-{n}\n" for n in range(200_000))
    write_files(tmp_path, {"raw.csv": f"x,name\n{rows}", "project/mine.py": TRANSFORM})
    entry = {"uri": str(raw), "bytes": raw.stat().st_size, "blake3": file_digest(raw), "format": "csv", "source": 0}
    transform = {"call": "mine.stay", "args": {"there": str(tmp_path / "there")}}
    shards = {"split": {"key": "x"}, "memory_bytes": 2**20, "transform": transform}
    return {
        "store": {"uri": store.uri}, "uri": "datasets/k-0", "key": "k", "files": [entry],
        "sources": [{"uri": "raw.csv"}], "root": str(tmp_path), "shards": shards, "project": str(project),
        "required_splits": ["train", "test"], "settings": {}, "provenance": {},
    }  # fmt: skip


def child_of(parent: subprocess.Popen[str], mark: str) -> int:
    [child] = set(find_marked(mark)) - {parent.pid}
    return child


def test_a_shard_child_that_is_killed_leaves_no_row(machine: Machine, sharding: dict, tmp_path: Path) -> None:
    parent = machine.parent("training.shard.worker", sharding)
    until(lambda: (tmp_path / "there").exists() or parent.poll() is not None)
    [folder] = machine.left()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(SECRET.encode() in path.read_bytes() for path in folder.rglob("*.arrow"))
    os.kill(child_of(parent, machine.mark), signal.SIGKILL)
    out, _ = parent.communicate(timeout=480)
    assert json.loads(out.splitlines()[-1]) == {"ended": "node_lost"}
    assert machine.left() == []


def test_what_a_killed_parent_left_is_swept_by_the_next_command(machine: Machine) -> None:
    parent, folder = machine.hanging()
    parent.kill()
    parent.communicate()
    until(lambda: find_marked(machine.mark) == [])
    age(folder / NOTE, -600)  # however long the commands take
    assert machine.next_command().returncode == 0
    assert machine.left() == [folder], "younger than a lease"
    age(folder / NOTE)
    told = json.loads(machine.next_command("doctor", "--json").stdout)["scratch"]
    assert [(one["path"], one["made_for"], one["why_kept"]) for one in told] == [(str(folder), "child", "")]
    assert f"removed {folder}, which a killed process left behind (child)" in machine.next_command().stderr
    assert machine.left() == []


def test_the_scratch_of_a_living_run_is_never_swept(machine: Machine) -> None:
    living, folder = machine.hanging()
    age(folder / NOTE)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(living.pid, number)
        assert machine.next_command().returncode == 0
        assert machine.left() == [folder]
    # Its parent is dead, and the child, stopped, cannot know it yet.
    child = child_of(living, machine.mark)
    os.kill(child, signal.SIGSTOP)
    living.kill()
    living.communicate()
    assert machine.next_command().returncode == 0
    assert machine.left() == [folder]
    os.kill(child, signal.SIGKILL)
    until(lambda: find_marked(machine.mark) == [])
    assert machine.next_command().returncode == 0
    assert machine.left() == []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """The root of this process' temporary folders."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(folder))
    return folder


def dead(root: Path, name: str, **changes: object) -> Path:
    """A folder as a killed process leaves it."""
    folder = root / f"{scratch.PREFIX}{name}"
    folder.mkdir(mode=0o700)
    (folder / "rows").write_text(SECRET)
    note = {"boot": boot_id(), "host": "here", "made_for": "child", "mark": "", "pid": 1, **changes}
    (folder / NOTE).write_text(json.dumps(note))
    age(folder / NOTE)
    age(folder)
    return folder


def test_a_folder_of_unknown_use_stays_and_is_reported(place: Path) -> None:
    gone, other = dead(place, "a"), dead(place, "b", boot="another", host="another")
    old, damaged = dead(place, "c"), dead(place, "d")
    (old / NOTE).unlink()
    age(old)
    (damaged / NOTE).write_text("no JSON")
    kept = {one.path: one.why_kept for one in scratch.leftovers()}
    assert list(kept) == [gone, other, old, damaged]
    assert kept[gone] == ""
    assert kept[other] == "the host another made it and will sweep it"
    assert kept[old] == kept[damaged] == "its maker is not known; remove it by hand if nothing uses it"
    assert [one.path for one in scratch.sweep()] == [gone]
    assert sorted(place.iterdir()) == [other, old, damaged]


def test_what_a_program_made_read_only_is_removed(place: Path) -> None:
    with scratch.make("test") as own:
        below = own.path / "closed" / "deep"
        below.mkdir(parents=True)
        (below / "file").touch()
        for folder in (below, below.parent):
            folder.chmod(0o500)
    assert list(place.iterdir()) == []


def test_no_link_is_followed(place: Path, tmp_path: Path) -> None:
    mine = dead(tmp_path, "mine")
    (place / f"{scratch.PREFIX}link").symlink_to(mine)
    folder = dead(place, "a")
    (folder / "link").symlink_to(mine)
    noted = dead(place, "b")
    (noted / NOTE).unlink()
    (noted / NOTE).symlink_to(mine / NOTE)
    piped = dead(place, "c")
    (piped / NOTE).unlink()
    os.mkfifo(piped / NOTE)
    assert [one.path for one in scratch.sweep()] == [folder]
    assert sorted(path.name for path in mine.iterdir()) == [NOTE, "rows"]


@pytest.mark.root
def test_another_users_folder_is_not_touched(place: Path) -> None:
    theirs = dead(place, "theirs")
    for path in (theirs, *theirs.iterdir()):
        os.chown(path, 65534, 65534)
    assert (scratch.leftovers(), scratch.sweep()) == ([], [])
    assert (theirs / "rows").read_text() == SECRET


@pytest.mark.parametrize("mode", [0o1777, 0o700, 0o777, pytest.param(None, marks=pytest.mark.root)])
def test_a_folder_in_which_others_can_rename_is_not_used(place: Path, home: Path, mode: int | None) -> None:
    if mode is None:
        os.chown(place, 65534, 65534)
    else:
        place.chmod(mode)
    with scratch.make("test") as own:
        assert own.path.parent == (place if mode in (0o1777, 0o700) else home / "tmp")
        assert stat.S_IMODE(own.path.stat().st_mode) == 0o700


def test_a_fork_does_not_remove_what_its_parent_made(place: Path) -> None:
    own = scratch.make("test")
    child = os.fork()
    if child == 0:
        own.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert own.path.exists()
    own.close()
    assert not own.path.exists()
