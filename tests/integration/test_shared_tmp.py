"""A TMPDIR that all users share: names that anyone can create first are neither used nor followed, and do no harm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.speed.prefect_database import put_new_database
from tests.support.tiny import MODEL, SPEC, answer, trainwright, write_project

pytestmark = [pytest.mark.apt("git"), pytest.mark.root]

NOBODY = 65534
# What torch would compile into, and where this process' temporary files lie.
LOOKING = """
import tempfile
from torch._inductor.runtime.cache_dir_utils import cache_dir

with open("{seen}", "a") as file:
    print(cache_dir(), tempfile.gettempdir(), sep="\\n", file=file)
"""


def planted(tmp: Path, victim: Path) -> dict[str, tuple[int, int, str]]:
    """Names that libraries take, made by another user: folders, files, links to what belongs to us."""
    names = [
        "torchinductor_root",
        "dvc",
        "dask-scratch-space",
        "dask-worker-space",
        "matplotlib",
        "prefect",
        ".prefect",
    ]
    names += ["great_expectations", "numba", ".triton", "trainwright", "trainwright-shards-", "uvicorn.log", ".owner"]
    for number, name in enumerate(names):
        if number % 3 == 0:
            (tmp / name).mkdir()
        elif number % 3 == 1:
            (tmp / name).write_text("theirs")
        else:
            (tmp / name).symlink_to(victim)
    dead = tmp / "trainwright-aaaaaaaa"
    dead.mkdir()
    (dead / ".owner").write_text('{"boot": "", "host": "", "made_for": "child", "mark": "", "pid": 1}')
    (tmp / "trainwright-bbbbbbbb").symlink_to(victim)
    for path in [*tmp.iterdir(), *dead.iterdir()]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return seen(tmp)


def seen(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: owner, time of its last change, content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (facts.st_uid, facts.st_mtime_ns, content)
    return found


def tracked(folder: Path, env: dict[str, str]) -> None:
    """Have DVC track the rows, in a repository of its own."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    dvc = [sys.executable, "-m", "dvc"]
    for command in (
        ["git", "init", "-q"], [*dvc, "init", "-q"], [*dvc, "add", "-q", "rows.csv"],
        ["git", "add", "-A"], ["git", *who, "commit", "-qm", "rows"],
    ):  # fmt: skip
        subprocess.run(command, cwd=folder, env={**os.environ, **env}, check=True, capture_output=True)


def test_a_line_uses_nothing_that_others_have_planted(tmp_path: Path) -> None:
    tmp, home, victim = tmp_path / "tmp", tmp_path / "home", tmp_path / "victim"
    for folder in (tmp, victim):
        folder.mkdir()
    tmp.chmod(0o1777)
    (victim / "precious").write_text("ours")
    spec = write_project(tmp_path / "p", {**SPEC, "data": {"source": [{"uri": "rows.csv", "rev": "HEAD"}]}})
    (spec.parent / "net.py").write_text(MODEL + LOOKING.format(seen=tmp_path / "seen"))
    tracked(spec.parent, {"DVC_SITE_CACHE_DIR": str(tmp_path / "mine")})
    before = planted(tmp, victim)
    env = {"TMPDIR": str(tmp), "TRAINWRIGHT_HOME": str(home)}
    # As on a person's machine, who has named none of them.
    env |= dict.fromkeys(("DVC_SITE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"), "")
    for verb in ("validate", "shard", "train"):
        done = trainwright(verb, spec, "--json", env=env)
        assert done.returncode == 0, done.stderr
        assert answer(done)["stage"]["status"] == "ran"
    said = (tmp_path / "seen").read_text().splitlines()
    assert set(said[::2]) == {str(home / "inductor")}
    assert all(Path(path).parent == tmp and Path(path).name.startswith("trainwright-") for path in said[1::2])
    assert (home / "dvc" / "repo").is_dir()
    assert seen(tmp) == before
    assert (victim / "precious").read_text() == "ours"


@pytest.mark.slow
def test_a_server_and_a_worker_start_whatever_others_have_planted(shared_folder: Path) -> None:
    # Short paths: Python puts sockets there.
    place = Path(tempfile.mkdtemp(prefix="trainwright-tests-"))
    tmp, home = place / "tmp", place / "home"
    tmp.mkdir()
    tmp.chmod(0o1777)
    (tmp / "runner_storage").write_text("theirs")
    put_new_database(home, shared_folder)
    os.chown(tmp / "runner_storage", NOBODY, NOBODY)
    before = seen(tmp)
    env = {"TMPDIR": str(tmp), "TRAINWRIGHT_HOME": str(home), "PREFECT_HOME": str(place / "prefect")}
    try:
        up = trainwright("up", env=env, cwd=place)
        assert up.returncode == 0, up.stderr
        for name in ("server", "worker"):
            pid = json.loads((home / f"{name}.json").read_text())["pid"]
            assert psutil.Process(pid).environ()["TMPDIR"] == str(home / "tmp")
        assert (home / "tmp").stat().st_mode & 0o777 == 0o700
        assert seen(tmp) == before
    finally:
        trainwright("down", env=env, cwd=place)
        shutil.rmtree(place)
