"""SIGKILL of any process of a run at any moment: the run resumes and promotes the weights it would have promoted."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from data_contracts.handoffs import Checkpoint
from infra.store import open_store
from tests.support.tiny import answer, trainwright, write_project
from training.checkpoint import read_tensors

SETTINGS = ("--set", "train.lightning.trainer.max_epochs=20", "--set", "train.checkpoint.every_steps=50")
END_S = 480


def promoted_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of version 1, after everything in the store was read again."""
    store = open_store(str(folder / ".trainwright"))
    assert trainwright("prove", "tiny@champion", "--store", store.uri).returncode == 0
    told = store.manifest("models/tiny/1").provenance["checkpoint"]
    return dict(read_tensors(store.local(Checkpoint.from_json(told).ref)))


def processes(command: psutil.Process) -> list[psutil.Process]:
    """The command and the processes that it started, without those that outlive it."""
    found = [command, *command.children(recursive=True)]
    return [one for one in found if "infra.orchestrator.serve" not in " ".join(one.cmdline())]


def struck(spec: Path, draw: random.Random, kills: int) -> tuple[dict[str, Any], int]:
    """Run a spec to its end while some of its processes are killed; its report, and the number of kills in time."""
    arguments, came = ["run", str(spec), *SETTINGS, "--json", "--key", "one"], 0
    for kill in range(kills + 1):
        command = [sys.executable, "-m", "flows.cli", *arguments]
        root = Path(__file__).parents[2]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            if kill < kills:
                time.sleep(draw.uniform(2, 20))
                with contextlib.suppress(psutil.NoSuchProcess):  # it was done before
                    draw.choice(processes(psutil.Process(running.pid))).kill()
                    came += 1
            stdout, stderr = running.communicate(timeout=END_S)
        if running.returncode == 0:
            break
    done = subprocess.CompletedProcess(command, running.returncode, stdout, stderr)
    assert done.returncode == 0, stderr
    return answer(done), came


@pytest.mark.sweep
@pytest.mark.parametrize(("runs", "kills"), [(1, 1), (31, 2)])
def test_killed_runs_promote_the_same_weights(tmp_path: Path, runs: int, kills: int) -> None:
    """A run that did not end with exit code 0, because it was killed or a process of it was, is started again."""
    spec = write_project(tmp_path / "undisturbed")
    done = trainwright("run", spec, *SETTINGS, "--json")
    assert done.returncode == 0, done.stderr
    expected = promoted_weights(spec.parent)
    draw, came = random.Random(11), 0
    for number in range(runs):
        spec = write_project(tmp_path / f"struck-{number}")
        report, kills_here = struck(spec, draw, kills)
        came += kills_here
        assert report["verdict"] in {"promoted", "unchanged"}
        found = promoted_weights(spec.parent)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(value, found[name]), f"run {number}: {name} differs"
    print(f"\n{came} kills in {runs} runs, all promoted, bit for bit")
    assert came
