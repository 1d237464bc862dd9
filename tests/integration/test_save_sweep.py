"""A save or retention pass killed anywhere leaves a committed checkpoint, and no reader ever sees a part of one.

Figures with `pytest -s`; a sample runs by default, every call and request with `--sweep`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.s3 import S3Server

SCENARIOS = [("save", 0), ("save", 1), ("retire", 0)]


def swept(repository: Path, **told: object) -> dict:
    command = [sys.executable, "-m", "tests.support.save_sweep", json.dumps(told)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{told['what']}, rank {told['rank']}, {told['by']}: {found}")
    assert found["missed"] == []
    assert found["tried"] >= found["calls"] // int(str(told["step"]))
    return found


@pytest.mark.apt("strace")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("what", "rank"), SCENARIOS)
@pytest.mark.parametrize("step", [pytest.param(1, id="all", marks=pytest.mark.sweep), pytest.param(11, id="sample")])
def test_killed_at_a_file_system_call(what: str, rank: int, step: int, tmp_path: Path, repository: Path) -> None:
    store = str(tmp_path / "stores")
    swept(repository, store=store, options={}, what=what, rank=rank, by="calls", step=step)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("what", "rank"), [SCENARIOS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in SCENARIOS[1:])]
)
@pytest.mark.parametrize("step", [pytest.param(1, id="all", marks=pytest.mark.sweep), pytest.param(9, id="sample")])
def test_killed_at_a_request_to_s3(what: str, rank: int, step: int, s3_server: S3Server, repository: Path) -> None:
    store = f"s3://{s3_server.bucket()}/stores"
    swept(repository, store=store, options=s3_server.options, what=what, rank=rank, by="requests", step=step)
