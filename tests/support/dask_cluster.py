"""A Dask cluster of processes on this machine, and runs of one stage that may use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
import psutil

from tests.support.approved import approve_here
from tests.support.speed.children import import_path
from tests.support.waiting import free_port

# One stage alone, once for each line of overrides. A line for each: the id of what it made, or how it failed.
RUNS = """
import json, sys
from data_contracts.errors import TrainwrightError
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from flows.stages import stages

[stage] = [one for one in stages() if one.name == sys.argv[2]]

for overrides in sys.argv[3:]:
    try:
        run = open_run(read_spec(sys.argv[1], overrides.splitlines()), recorded=False)
        made = stage(run, *(None for _ in stage.takes))
        answer = {"id": made.ref.id, "uri": made.ref.uri}
    except TrainwrightError as error:
        answer = {"error": type(error).__name__, "exit_code": error.exit_code, "sentence": str(error)}
    print(json.dumps(answer))
"""


class Cluster:
    """A scheduler on loopback and its workers, of one thread each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"tcp://127.0.0.1:{free_port()}"
        approve_here(self.address, "prefect:settings")
        self.processes: list[subprocess.Popen[bytes]] = []
        host, port = self.address.removeprefix("tcp://").split(":")
        self.start("scheduler", "--host", host, "--port", port, "--no-dashboard")

    def worker(self, **env: str) -> subprocess.Popen[bytes]:
        arguments = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self.folder))
        return self.start("worker", self.address, *arguments, env=env)

    def wait_for_workers(self, count: int) -> None:
        """Wait until so many workers have joined."""
        with distributed.Client(self.address, timeout=120, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=240)

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": import_path(), "TMPDIR": str(self.folder), **(env or {})},
            stdout=log,
            stderr=log,
        )
        self.processes.append(process)
        return process

    def pieces(self) -> set[str]:
        """The pieces of work that are being done, each by the command line of its child process."""
        lines = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
        # A child that is forked from a warm process has two processes of one command line, one of them longer.
        here = {" ".join(line).rstrip() for line in lines if "infra.cluster_tasks" in line}
        return {line for line in here if str(self.folder) in line}

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def runs(stage: str, project: Path, *overrides: list[str]) -> subprocess.Popen[str]:
    """A stage alone, several times, one after another."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.asked",
            RUNS,
            str(project / "pipeline.yaml"),
            stage,
            *map("\n".join, overrides),
        ],
        env={**os.environ, "PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(run: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 480
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.1)  # to look at all processes takes as long
