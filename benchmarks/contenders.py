"""One training, given to ours and to its peers in turn; each is processes of its own, which time themselves.

Ours is the line as users run it (contract, shards, conductor, node, torchrun, ranks), without Prefect. No start of a
process is timed: a whole training's clock runs between two steps (`marks`), and where trainings that never end share a
machine turn by turn, each begins when it has warmed up.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_contracts.handoffs import Dataset
from infra.machine import threads_per_process
from infra.processes.processes import find_marked, kill_marked, marked_env, new_mark
from tasks.run.resolve import RunOptions
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate

HERE = Path(__file__).resolve().parent
SUITE = {
    "name": "benchmark",
    "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}],
}


@dataclass
class Training:
    """What is trained, and how.

    Attributes:
        model: class of modules.py, with `init_args` beside the marks.
        columns: name → rows, the data that every contender reads.
        warm: steps before the clock starts; steps: those that it counts.
        batch_size: rows of a rank.
    """

    folder: Path
    model: str
    init_args: dict[str, Any]
    columns: dict[str, np.ndarray]
    batch_size: int
    warm: int
    steps: int
    ranks: int = 1
    precision: str = "32-true"
    accelerator: str = "cpu"

    def whole(self, name: str) -> dict[str, float]:
        """Train to the end; what a step took and how much memory. `name`: ours, bare (DDP on ranks) or lightning."""
        path = self.folder / "times.json"
        path.unlink(missing_ok=True)
        command = self._command(name)
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder, env=self._env(BENCH_TIMES=str(path))
        )
        if done.returncode:
            raise SystemExit(f"{name} ended with exit code {done.returncode}:\n{done.stderr[-4000:]}")
        told: dict[str, float] = json.loads(path.read_text())
        return told

    def turns(self, names: Sequence[str], turns: int, turn_s: float) -> dict[str, list[float]]:
        """Seconds a step in each turn, of trainings on one machine of which one runs while the others are stopped.

        A machine's speed drifts within minutes, more than what is to be found; neighbouring turns share it.
        """
        runs = {name: _Stopped(self._command(name), self._env, self.folder / f"ticks-{name}") for name in names}
        taken: dict[str, list[float]] = {name: [] for name in names}
        try:
            for run in runs.values():
                run.warm_up(self.warm)
            for turn in range(turns):
                for name in names if turn % 2 else reversed(names):
                    taken[name].append(runs[name].turn(turn_s))
        finally:
            for run in runs.values():
                run.end()
        return taken

    def _command(self, name: str) -> list[str]:
        if name == "ours":
            return [sys.executable, str(HERE / "contenders.py"), str(self._spec), str(self.folder / "store")]
        settings = {
            "model": self.model, "init_args": self._arguments, "data": str(self._arrays), "batch_size": self.batch_size,
            "steps": self._last + 1, "precision": self.precision, "accelerator": self.accelerator,
        }  # fmt: skip
        several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        launcher = several if self.ranks > 1 else []
        return [sys.executable, *launcher, str(HERE / "loops.py"), name, json.dumps(settings)]

    def _env(self, **more: str) -> dict[str, str]:
        # As many threads for each contender as ours gives a rank.
        threads = str(threads_per_process(self.ranks))
        return {**os.environ, "OMP_NUM_THREADS": threads, **more}

    @property
    def _last(self) -> int:
        return self.warm + self.steps

    @property
    def _arguments(self) -> dict[str, Any]:
        return {"marks": [self.warm, self._last], **self.init_args}

    @cached_property
    def _arrays(self) -> Path:
        """Folder with the columns as NumPy's files."""
        folder = self.folder / "arrays"
        folder.mkdir()
        for name, values in self.columns.items():
            np.save(folder / f"{name}.npy", values)
        return folder

    @cached_property
    def _spec(self) -> Path:
        """A project with the same module, and the same rows as Parquet."""
        project = self.folder / "project"
        project.mkdir()
        (project / "pyproject.toml").write_text('[project]\nname = "benchmark"\nversion = "0"\n')
        (project / "suite.json").write_text(json.dumps(SUITE))
        shutil.copy(HERE / "modules.py", project)
        rows = len(next(iter(self.columns.values())))
        table = {name: pa.array(list(each) if each.ndim > 1 else each) for name, each in self.columns.items()}
        pq.write_table(pa.table({"id": pa.array(range(rows)), **table}), project / "rows.parquet")
        spec = {
            "version": 1,
            "name": "benchmark",
            "data": {"source": "rows.parquet"},
            "contract": {"suite": "suite.json"},
            "shards": {"split": {"key": "id", "fractions": {"train": 0.99, "val": 0, "test": 0.01}}},
            "train": {
                "lightning": {
                    "model": {"class_path": f"modules.{self.model}", "init_args": self._arguments},
                    "trainer": {
                        "accelerator": self.accelerator, "precision": self.precision, "max_steps": self._last + 1,
                        "max_epochs": -1,
                    },
                },
                "global_batch_size": self.batch_size * self.ranks,
                "strategy": "ddp" if self.ranks > 1 else "single",
                "devices": self.ranks,
                "batch": {name: name for name in self.columns},
                "checkpoint": {"every_steps": 10**9},
            },
            "evaluate": {"metrics": {"loss": {"logged": "loss", "mode": "min"}}},
        }  # fmt: skip
        path = project / "pipeline.yaml"
        path.write_text(yaml.safe_dump(spec))
        return path


class _Stopped:
    """A training that is stopped but for its turns, with all its processes."""

    def __init__(self, command: list[str], env: Callable[..., dict[str, str]], ticks: Path) -> None:
        self._ticks, self._mark, self._log = ticks, new_mark(), ticks.with_suffix(".log")
        ticks.unlink(missing_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, env=marked_env(self._mark, env(BENCH_TICKS=str(ticks))), cwd=ticks.parent, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def warm_up(self, steps: int) -> None:
        """Run for so many steps."""
        while len(self._times()) < steps:
            if self._process.poll() is not None:
                raise SystemExit(f"{self._process.args!r} has ended:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> float:
        """Run for so long; the mean time of the steps that began and ended in it."""
        since = time.perf_counter()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        until = time.perf_counter()
        self._signal(signal.SIGSTOP)
        times = self._times()
        # The first step that begins in it: the one before was interrupted.
        within = times[(times >= since) & (times <= until)]
        return float((within[-1] - within[0]) / (len(within) - 1))

    def end(self) -> None:
        """Kill it."""
        kill_marked(self._mark)
        self._process.wait()

    def _times(self) -> np.ndarray:
        if not self._ticks.exists():
            return np.zeros(0)
        ticks = np.fromfile(self._ticks, np.float64)
        return ticks[ticks > 0]

    def _signal(self, number: int) -> None:
        for pid in find_marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def prepared(spec: Path, store: Path) -> Dataset:
    """The spec's dataset, made or there already."""
    run = open_run(read_spec(spec), store_uri=str(store))
    dataset = shard(run, validate(run))
    assert dataset is not None
    return dataset


if __name__ == "__main__":
    logging.getLogger("trainwright").setLevel(logging.WARNING)
    spec, store = map(Path, sys.argv[1:])
    train(open_run(read_spec(spec), store_uri=str(store), options=RunOptions(fresh=True)), prepared(spec, store))
