"""A tiny pipeline in a folder of its own: 600 rows of a table, a small network, seconds from data to promotion."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.processes.processes import CODE_ROOT
from tests.support.files import write_files
from tests.support.speed import children
from tests.support.speed.prefect_database import put_new_database

MODEL = """\
import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self, hidden: int = 16, lr: float = 0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", nn.functional.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)
"""


def slowed(while_there: Path) -> str:
    """The model, whose steps take 0.05 s longer while a file is there: a test can act before its training ends."""
    step = "    def training_step(self, batch, batch_idx):\n"
    wait = f"        time.sleep(0.05 * Path({str(while_there)!r}).exists())\n"
    return "import time\nfrom pathlib import Path\n\n" + MODEL.replace(step, step + wait)


STAGES = ("validate", "shard", "train", "verify", "evaluate", "promote")
SUITE = {
    "name": "tiny",
    "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "min_value": -1, "max_value": 1}},
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "label", "value_set": [0, 1]}},
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "b"}},
    ],
}

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "tags": {"team": "tests"},
    "data": {"source": "rows.csv"},
    "contract": {"suite": "suite.json"},
    "shards": {"split": {"key": "id"}},
    "train": {
        "lightning": {
            "model": {"class_path": "net.Net", "init_args": {"lr": 0.05}},
            "trainer": {"max_epochs": 3},
        },
        "global_batch_size": 32,
        "strategy": "single",
        "batch": [["a", "b", "c"], "label"],
        "seed": 7,
    },
    "evaluate": {
        "metrics": {
            "accuracy": {
                "class_path": "torchmetrics.classification.MulticlassAccuracy",
                "init_args": {"num_classes": 2, "average": "micro"},
                "target": "label",
                "mode": "max",
            }
        }
    },
    "promote": {"gates": [{"metric": "accuracy", "min": 0.8}, {"metric": "accuracy", "min_gain": 0}]},
}


def write_rows(path: Path, rows: int = 600, seed: int = 1) -> None:
    """Rows whose label is whether a + b > c: a CSV with a header."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "b", "c", "label"])
        for number in range(rows):
            a, b, c = (round(draw.uniform(-1, 1), 6) for _ in range(3))
            writer.writerow([number, a, b, c, int(a + b > c)])


def write_project(folder: Path, spec: Mapping[str, Any] | None = None) -> Path:
    """Write the tiny project into `folder` and return its spec; `spec` replaces whole top-level sections."""
    files = {
        "pyproject.toml": '[project]\nname = "tiny"\nversion = "0"\n',
        "net.py": MODEL,
        "suite.json": json.dumps(SUITE),
        "pipeline.yaml": yaml.safe_dump({**SPEC, **(spec or {})}, sort_keys=False),
    }
    write_files(folder, files)
    write_rows(folder / "rows.csv")
    return folder / "pipeline.yaml"


def work_on_a_copy(line: Path, tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished line's project as the current folder, with a state folder of its own."""
    patch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    copy = Path(shutil.copytree(line, tmp_path / "tiny", symlinks=True))
    patch.chdir(copy)
    return copy


def trainwright(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 540,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a process of its own and wait for it.

    Args:
        forked: whether it may be forked from a process that has imported what commands import. False where a test
            looks at the process from outside, such as at its command line: it has one of its own then.
    """
    words = [str(argument) for argument in arguments]
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": children.import_path(), **(env or {})}
    if forked and words[0] not in ("up", "down"):
        environment = children.for_command(environment)
    command = [sys.executable, "-m", "flows.cli", *words]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def succeed(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line as `trainwright` does; it must end with exit code 0."""
    done = trainwright(*arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def report_of(*arguments: str | Path, **options: Any) -> dict[str, Any]:
    """The report of a `run`, which ends with the exit code that the report has."""
    done = trainwright("run", *arguments, "--json", **options)
    report = answer(done)
    assert done.returncode == report["exit_code"], done.stderr
    return report


def statuses(report: Mapping[str, Any]) -> dict[str, str]:
    """The status of each stage in a report, in their order."""
    return {stage["name"]: stage["status"] for stage in report["stages"]}


def promote_tiny(spec: Path, home: Path, *arguments: str) -> None:
    """Carry out a pipeline by one command for each stage, which need no server as `run` does: half of what it takes."""
    for stage in STAGES:
        succeed(stage, spec, *arguments, env={"TRAINWRIGHT_HOME": str(home)})


@contextlib.contextmanager
def home_with_server(home: Path, shared: Path) -> Iterator[None]:
    """TRAINWRIGHT_HOME is `home`, and the Prefect server that a `run` starts there is stopped at the end.

    Args:
        shared: the folder of all of this session's processes (`shared_folder`).
    """
    with children.warm_prefect(), pytest.MonkeyPatch.context() as patch:
        put_new_database(home, shared)
        patch.setenv("TRAINWRIGHT_HOME", str(home))
        try:
            yield
        finally:
            trainwright("down")


def complaints(done: subprocess.CompletedProcess[str] | str) -> str:
    """What a command wrote to stderr, without the lines on what another test's killed process left in TMPDIR."""
    lines = (done if isinstance(done, str) else done.stderr).splitlines(keepends=True)
    return "".join(line for line in lines if "which a killed process left behind" not in line)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object that a command with `--json` printed, and nothing else on stdout."""
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def own_modules() -> Iterator[None]:
    """Afterwards `sys.path` is as it was, and what was imported meanwhile from a test's own folders is forgotten."""
    path, known = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        installed = (str(CODE_ROOT), sys.prefix, sys.base_prefix)
        for name in set(sys.modules) - known:
            if not (getattr(sys.modules[name], "__file__", None) or sys.prefix).startswith(installed):
                del sys.modules[name]
