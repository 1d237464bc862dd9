"""On a real server with a real receiver: each process of a night is killed once, and each death is one message."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.processes.processes import kill_marked
from infra.store import open_store
from tests.support.pool import ASKED, FINAL, Site, flow_process, processes_of, site_with, until
from tests.support.receiver import Receiver, block, receiving
from tests.support.tiny import SPEC, answer, slowed, trainwright, write_project

pytestmark = pytest.mark.usefixtures("forked_prefect")

BLOCK = "webhook/night"
NIGHT = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 30}},
        "checkpoint": {"every_steps": 20},
    },
    "notify": [{"on": ["crashed", "promoted"], "block": BLOCK}],
}
# As `deploy` does, but a run is late after a minute.
WATCH = """
from datetime import timedelta
from prefect.client.orchestration import get_client
from infra.orchestrator.automations import watch
with get_client(sync_client=True) as client:
    watch(client, timedelta(seconds=60))
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, state_folder: Path, receiver: Receiver) -> Iterator[Site]:
    with site_with(tmp_path / "site", state_folder / "home") as site:
        site.environment["PREFECT_WORKER_HEARTBEAT_SECONDS"] = "15"
        made = block(site, BLOCK, {"url": f"{receiver.url}/night", "method": "POST"})
        yield site
        site.ask(f"/block_documents/{made}", method="DELETE")


class Night:
    """What people were told, each subject once."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver, self.subjects = receiver, list[str]()

    def is_told(self, subject: str) -> None:
        began = time.monotonic()
        self.subjects.append(subject)
        until(lambda: len(self._receiver.messages) >= len(self.subjects), what=lambda: self._receiver.messages)
        assert self._receiver.subjects("/night") == sorted(self.subjects)
        print(f"{subject}: told after {time.monotonic() - began:.0f} s")


def begin(site: Site, title: str) -> dict[str, Any]:
    """A flow run of a deployment."""
    deployment = site.ask(f"/deployments/name/{title}", method="GET")
    return dict(site.ask(f"/deployments/{deployment['id']}/create_flow_run"))


def killed(site: Site, flow_run: dict[str, Any]) -> None:
    os.kill(flow_process(site, flow_run), signal.SIGKILL)


@pytest.mark.slow
def test_each_death_is_one_message(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    worker, night = site.work(site.pool("watched", worker=False)), Night(receiver)
    spec = write_project(tmp_path / "tiny", NIGHT)
    (slow := tmp_path / "slow").touch()
    (spec.parent / "net.py").write_text(slowed(slow))
    deployed = trainwright("deploy", spec, "--pool", "watched", "--json", env=site.environment)
    assert deployed.returncode == 0, deployed.stderr
    assert answer(deployed)["told"] == [BLOCK]
    site.pause("reap/watched", "day-page/watched")
    subprocess.run([*ASKED, WATCH], env=site.environment, check=True)

    run = begin(site, "retrain/tiny")
    store = Path(spec.parent / ".trainwright")
    until(lambda: any(store.glob("trainings/*/g0/beat-0.json")), what=lambda: site.now(run)["state"])
    killed(site, run)
    night.is_told("tiny: a flow run crashed")
    reaper = begin(site, "reap/watched")
    until(lambda: site.state(reaper) in FINAL)
    assert "is executed again by a worker" in site.now(reaper)["state"]["message"]
    slow.unlink()
    until(lambda: site.state(run) == "COMPLETED", what=lambda: site.now(run)["state"])
    night.is_told("tiny: a version was promoted")  # and not that the run was resumed: it is known that it crashed

    page = begin(site, "day-page/watched")
    until(lambda: processes_of(site, page))
    killed(site, page)
    night.is_told("day-page: a flow of Trainwright itself failed")

    kill_marked(worker)
    night.is_told("watched: no worker is online")
    begin(site, "retrain/tiny")
    night.is_told("tiny: a run is late")
    assert open_store(str(store)).list("runs")


# The day's page of a store with two nights that failed, as of a disk that is nearly full; and a rank that hung.
STORE_DAY = """
import shutil, sys
from datetime import UTC, datetime, timedelta
from prefect import flow
from flows.day_page import day_page
from infra.gang.members import Progress
from infra.store import open_store
from tasks.run.report import TrainingReporter
from tests.support.ledger_runs import report, run_id_at, usage, write
from tests.support.runs import make_run

store, now = open_store(sys.argv[1]), datetime.now(UTC)
for hours in (2, 3) if not store.list("runs") else ():
    began, ended = now - timedelta(hours=hours), now - timedelta(hours=hours - 1)
    error = {"cause": "node_lost", "message": "m", "remedy": "", "user_traceback": "", "details": {}}
    done = report(run_id_at(began), began, ended, "failed", exit_code=5, error=error, pipeline="tiny")
    write(store, done, usage(done.run_id, began, ended, pipeline="tiny"))
known = shutil.disk_usage(store.uri)
shutil.disk_usage = lambda path: known._replace(used=95, free=5)
day_page(store.uri)

@flow
def trains():
    reporter = TrainingReporter.__new__(TrainingReporter)
    reporter._run, reporter._training = make_run(), "trainings/k-0"
    reporter._announce_restart(Progress(0, "ended", cause="hung"))
    reporter._announce_restart(Progress(1, "ended", cause="node_lost"))
trains()
"""
WORDS = [
    "a store is nearly full",
    "page: the objective job-success",
    "ticket: the objective goodput",
    "tiny: a rank hung",
    "tiny: a training was restarted",
]


def test_alerts_about_stores_and_restarts_reach_people_once(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    site.pool("alerted", worker=False)
    asked = [{"on": ["page", "hung"], "block": BLOCK}, {"on": ["ticket", "store_full", "restarted"], "block": BLOCK}]
    spec = write_project(tmp_path / "tiny", {"notify": asked})
    deployed = trainwright("deploy", spec, "--pool", "alerted", "--json", env=site.environment)
    assert deployed.returncode == 0, deployed.stderr
    store = open_store(str(tmp_path / "store"))
    for _ in range(2):  # the next hour
        subprocess.run(
            [*ASKED, STORE_DAY, store.uri],
            env={**site.environment, "TRAINWRIGHT_HOME": str(tmp_path / "home")},
            check=True,
        )
    until(lambda: len(receiver.messages) >= len(WORDS), what=lambda: receiver.messages)
    assert receiver.subjects("/night") == WORDS
    bodies = " ".join(message["body"] for _, message in receiver.messages)
    assert "95% full" in bodies
    assert "page: spent" in bodies

    again = begin(site, "retrain/tiny")
    waits = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    site.ask(f"/flow_runs/{again['id']}/set_state", waits)
    shown = site.api.get("/metrics")
    assert 'trainwright_late_seconds{deployment="retrain/tiny"}' in shown.text
    assert 'trainwright_pool_ready{pool="alerted"} 0.0' in shown.text
    assert site.api.get("/metrics", auth=("team", "another")).status_code == 401
