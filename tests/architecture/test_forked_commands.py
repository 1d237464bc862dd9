"""A command that is forked from a warm process (`tests/support/warm_cli.py`) behaves as a new process does."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support import warm_cli
from tests.support.tiny import complaints, trainwright, write_project


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["schema"], 0),
        (["plan", "none.yaml"], 2),
        (["nothing"], 2),
        (["plan", "pipeline.yaml", "--no-estimate", "--json"], 0),
    ],
)
def test_what_it_prints_and_its_exit_code_are_the_same(words: list[str], code: int, tmp_path: Path) -> None:
    write_project(tmp_path)
    forked, fresh = (trainwright(*words, cwd=tmp_path, forked=forked) for forked in (True, False))
    assert forked.returncode == fresh.returncode == code
    assert (forked.stdout, complaints(forked)) == (fresh.stdout, complaints(fresh))


def test_it_has_the_folder_the_environment_and_the_umask_of_its_caller(tmp_path: Path) -> None:
    made: dict[bool, dict[str, int]] = {}
    before = os.umask(0o027)
    try:
        for forked in (True, False):
            env = {"TRAINWRIGHT_HOME": str(tmp_path / f"home-{forked}")}
            assert trainwright("init", f"made-{forked}", cwd=tmp_path, env=env, forked=forked).returncode == 0
            folder = tmp_path / f"made-{forked}"
            made[forked] = {str(p.relative_to(folder)): stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*")}
    finally:
        os.umask(before)
    assert made[True] == made[False]
    assert 0o640 in made[True].values()


def test_what_is_read_when_python_starts_needs_a_process_of_its_own() -> None:
    here = {**os.environ, "PYTHONPATH": str(warm_cli.ROOT)}
    assert warm_cli.can_fork(here)
    assert not warm_cli.can_fork({**here, "PYTHONPATH": "/elsewhere"})
    assert not warm_cli.can_fork({**here, "PYTHONWARNINGS": "error"})
    assert not warm_cli.can_fork({**here, "OMP_NUM_THREADS": "7"})
