"""A CI job that is cancelled ends its gang, here and on a worker; the next job continues the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.processes.processes import is_alive
from tests.support.processes import foreground
from tests.support.tiny import MODEL, SPEC, trainwright, write_project

PATIENCE_S = 480.0


def until(holds: object, job: subprocess.Popen[str] | None = None) -> None:
    """Wait until `holds()`; fail if the job ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        assert job is None or job.poll() is None, job.communicate()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("remote", "number"), [(False, signal.SIGINT), (True, signal.SIGTERM)])
def test_a_cancelled_job_cancels_the_gang_and_the_next_one_continues(
    remote: bool, number: int, tmp_path: Path, repository: Path
) -> None:
    step = "        x, y = batch\n        loss"
    stays = f"""\
        if self.global_step == 20:
            Path({str(tmp_path / "rank")!r}).write_text(str(os.getpid()))
            while Path({str(tmp_path / "stay")!r}).exists():
                time.sleep(0.01)
"""
    train = {**SPEC["train"], "checkpoint": {"every_steps": 10}}
    spec = write_project(tmp_path / "project", {"train": train})
    (spec.parent / "net.py").write_text(
        "import os, time\nfrom pathlib import Path\n" + MODEL.replace(step, stays + step)
    )
    (tmp_path / "stay").touch()
    asked = ["ci", str(spec), "--junit", str(tmp_path / "junit.xml")]
    if remote:
        assert trainwright("up").returncode == 0
        assert trainwright("deploy", spec, "--name", "cancelled").returncode == 0
        asked += ["--deployment", "cancelled"]

    command = [sys.executable, "-m", "flows.cli", *asked]
    env = {**os.environ, "PYTHONPATH": str(repository), "GITHUB_OUTPUT": str(tmp_path / "output")}
    job = subprocess.Popen(command, cwd=repository, env=env, stderr=subprocess.PIPE, text=True, preexec_fn=foreground)
    until(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text(), job)
    rank = int((tmp_path / "rank").read_text())
    job.send_signal(number)
    _, said = job.communicate(timeout=PATIENCE_S)
    assert job.returncode == 130, said
    assert "verdict=cancelled\nexit_code=130\n" in (tmp_path / "output").read_text()
    assert 'failures="1"' in (tmp_path / "junit.xml").read_text()
    until(lambda: not is_alive(rank))

    (tmp_path / "stay").unlink()
    again = trainwright(*asked, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["verdict"] == "promoted"
    launched = sorted(spec.parent.glob(".trainwright/trainings/*/g*/launch.json"))
    assert len({path.parent.parent for path in launched}) == 1, "the same training"
    assert len(launched) == 2, "continued once"
