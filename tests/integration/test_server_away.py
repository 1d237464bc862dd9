"""A run whose Prefect server is killed while it trains, and started again on its database later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.processes.processes import find_marked, kill_marked, marked_env, new_mark
from tests.support.pool import ASKED, Site, password_in, until
from tests.support.speed.children import import_path
from tests.support.speed.prefect_database import put_new_database
from tests.support.tiny import SPEC, slowed, write_project
from tests.support.waiting import free_port

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

START = "from infra.orchestrator.server import ensure_server; print(ensure_server().url)"
STOP = "from infra.orchestrator.server import stop_server; stop_server()"
LONG = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 40}},
        "checkpoint": {"every_steps": 100},
    },
}


class Night:
    """A Prefect server of its own, which can be killed and started again, and a run that is carried out beside it."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.home, self.mark = folder, folder / "home", new_mark()
        put_new_database(self.home, shared)
        # Another process takes the usual port while this server is away.
        address = {"pid": 0, "mark": new_mark(), "url": f"http://127.0.0.1:{free_port()}/api"}
        (self.home / "server.json").write_text(json.dumps(address))
        self.env = {**os.environ, "TRAINWRIGHT_HOME": str(self.home), "PYTHONPATH": import_path()}
        (folder / "site").mkdir()
        self.site = Site(self.start_server(), folder / "site", password_in(self.home))
        self.run: subprocess.Popen[str]

    def start_server(self) -> str:
        done = subprocess.run([*ASKED, START], env=self.env, capture_output=True, text=True, check=True)
        return done.stdout.split()[-1]

    def signal_server(self, number: int) -> None:
        for pid in find_marked(json.loads((self.home / "server.json").read_text())["mark"]):
            os.kill(pid, number)

    def begin(self, *arguments: str, **variables: str) -> None:
        with self.log.open("w") as log:
            self.run = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *arguments, "--json"],
                env={**marked_env(self.mark), **self.env, **variables},
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def ended(self) -> tuple[int, dict[str, Any]]:
        out, _ = self.run.communicate(timeout=480)
        return self.run.returncode, json.loads(out)

    def events(self) -> list[str]:
        wanted = {"resource": {"id": ["trainwright.pipeline.tiny"]}}
        found = self.site.ask("/events/filter", {"filter": wanted})["events"]
        return sorted(one["event"] for one in found)

    def close(self) -> None:
        kill_marked(self.mark)
        subprocess.run([*ASKED, STOP], env=self.env, check=True)
        self.site.api.close()


@pytest.fixture
def night(tmp_path: Path, shared_folder: Path) -> Iterator[Night]:
    night = Night(tmp_path, shared_folder)
    yield night
    night.close()


def train_without_server(night: Night, *arguments: str, number: int = signal.SIGKILL, **variables: str) -> Path:
    """Kill or stop the server while a run of the tiny project trains, and let the training end; the project's store."""
    spec = write_project(night.folder / "tiny", LONG)
    store, slow = spec.parent / ".trainwright", night.folder / "slow"
    slow.touch()
    (spec.parent / "net.py").write_text(slowed(slow))
    night.begin("run", str(spec), *arguments, **variables)

    def trains() -> list[Path]:
        assert night.run.poll() is None, night.log.read_text()[-3000:]
        return list(store.glob("trainings/*/g0/beat-*.json"))

    until(trains, what=night.log.read_text)
    night.signal_server(number)
    slow.unlink()
    until(lambda: list(store.glob("trainings/*/result.json")), what=night.log.read_text)
    return store


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_run_waits_between_its_stages_for_its_server(night: Night, number: int) -> None:
    """Also for one that takes connections and answers nothing."""
    train_without_server(night, number=number)
    until(lambda: "waiting for the Prefect server" in night.log.read_text(), what=night.log.read_text)
    assert night.run.poll() is None
    if number == signal.SIGSTOP:
        night.signal_server(signal.SIGCONT)
    else:
        night.start_server()
    code, report = night.ended()
    assert (code, report["verdict"]) == (0, "promoted"), night.log.read_text()
    until(lambda: night.events() == ["trainwright.run.promoted"], what=night.events)
    (flow_run,) = night.site.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["retrain"]}}})
    assert flow_run["state"]["name"] == "Promoted"
    pages = {one["key"] for one in night.site.ask("/artifacts/filter", {})}
    assert {"tiny-train", "tiny-verify", "tiny-report"} <= pages
    tasks = night.site.ask("/task_runs/filter", {})
    assert {one["state"]["type"] for one in tasks} == {"COMPLETED"}, "Prefect lost the state of a task"


@pytest.mark.slow
def test_a_run_that_waited_in_vain_is_resumed_by_a_reaper_and_its_messages_are_sent(night: Night) -> None:
    # Prefect itself would go on for a minute, at the end of the flow run.
    store = train_without_server(night, "--set", "retry.server_wait_s=1", PREFECT_CLIENT_MAX_RETRIES="0")
    code, error = night.ended()
    assert (code, error["error"]["cause"]) == (5, "storage"), night.log.read_text()
    (run,) = (path.name for path in (store / "runs").iterdir())
    night.start_server()
    night.begin("reap", str(store))
    code, value = night.ended()
    assert (code, [one["run_id"] for one in value["runs"]]) == (0, [run]), night.log.read_text()
    assert "lacked the Prefect server (crash 1;" in value["runs"][0]["sentence"]
    report = json.loads((store / "runs" / run / "report.json").read_text())
    assert report["verdict"] == "promoted"
    assert next(one for one in report["stages"] if one["name"] == "train")["status"] == "reused"
    told = [f"trainwright.run.{end}" for end in ("failed", "promoted", "resumed")]
    until(lambda: night.events() == told, what=night.events)
