"""`doctor`, `status` and `deploy` on a real Prefect server whose schedules cannot be carried out: each says why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.pool import Site, site_of
from tests.support.tiny import trainwright, write_project

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

NIGHTLY = [{"schedule": {"cron": "0 3 * * *", "timezone": "UTC"}, "active": True}]

site = site_of("ready", worker=False)


class Machine:
    """A machine that uses the site's server, with a state folder of its own."""

    def __init__(self, site: Site, home: Path) -> None:
        self.site, self.home = site, home
        self.env = {**site.environment, "TRAINWRIGHT_HOME": str(home)}

    def fails(self, exit_code: int, *problems: str) -> dict[str, tuple[str, str]]:
        """The fact and the remedy of each problem that `doctor` names; these, and its exit code, are just as given."""
        done = trainwright("doctor", "--json", env=self.env)
        value = json.loads(done.stdout)
        wrong = {one["problem"]: (one["fact"], one["remedy"]) for one in value["checks"] if not one["ok"]}
        assert {one["exit_code"] for one in value["checks"] if not one["ok"]} <= {done.returncode}
        assert value["ok"] is (not wrong)
        assert (done.returncode, sorted(wrong)) == (exit_code, sorted(problems))
        return wrong


@pytest.fixture
def machine(site: Site, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(site, tmp_path / "home")
    machine.home.mkdir(mode=0o700)
    yield machine
    for one in site.ask("/deployments/filter"):
        site.ask(f"/deployments/{one['id']}", method="DELETE")


def deployed(site: Site, pool: str | None, entrypoint: str = "flows.retrain.retrain") -> dict[str, Any]:
    flow = site.ask("/flows/", {"name": "retrain"})
    asked = {"name": f"of-{pool}", "flow_id": flow["id"], "entrypoint": entrypoint, "schedules": NIGHTLY}
    return dict(site.ask("/deployments/", {**asked, "work_pool_name": pool}))


def wait_for_an_hour(site: Site, deployment: dict[str, Any]) -> None:
    """A flow run that was due an hour ago."""
    before = datetime.now(UTC) - timedelta(hours=1)
    waits = {"type": "SCHEDULED", "state_details": {"scheduled_time": before.isoformat()}}
    site.ask(f"/deployments/{deployment['id']}/create_flow_run", {"state": waits})


def test_doctor_compares_what_should_run_with_what_does(site: Site, machine: Machine, tmp_path: Path) -> None:
    machine.fails(0)
    site.pool("tended")
    deployed(site, "tended")
    deployed(site, site.pool("strangers", worker=False), "their.flow")
    machine.fails(0)  # a worker is online; other people's deployments are not ours to judge

    late = deployed(site, site.pool("untended", worker=False))
    wait_for_an_hour(site, late)
    wrong = machine.fails(5, "no_worker")
    fact, remedy = wrong["no_worker"]
    assert "Schedules that it should carry out: 1; flow runs that are due: 1" in fact
    assert "`trainwright worker --pool untended`" in remedy
    site.ask(f"/deployments/{late['id']}", method="DELETE")

    for pool, kind in (("stopped", ""), ("closed", "queue"), ("shut", "limit")):
        deployed(site, site.pool(pool, worker=False, limit=0 if kind == "limit" else None))
        if kind == "queue":
            queue = site.ask(f"/work_pools/{pool}/queues/default", method="GET")
            site.ask(f"/work_pools/{pool}/queues/{queue['name']}", {"is_paused": True}, method="PATCH")
        elif not kind:
            site.ask(f"/work_pools/{pool}", {"is_paused": True}, method="PATCH")
    wrong = machine.fails(5, "pool_limit", "pool_paused", "queue_paused")
    assert wrong["pool_paused"][1] == "Resume it: `prefect work-pool resume stopped`."
    assert wrong["queue_paused"][1] == "Resume it: `prefect work-queue resume default --pool closed`."
    shown = trainwright("status", env=machine.env)
    assert "`prefect work-pool resume stopped`" in shown.stdout
    spec = write_project(tmp_path / "tiny")
    done = trainwright("deploy", spec, "--pool", "stopped", "--start", env=machine.env)
    assert (done.returncode, "The work pool stopped is paused" in done.stderr) == (5, True), done.stderr
    assert "`prefect work-pool resume stopped`" in done.stderr


def test_doctor_names_runs_that_wait_and_schedules_without_a_pool(site: Site, machine: Machine) -> None:
    late = deployed(site, site.pool("crowded", worker=False))
    heartbeat = {"name": "a-worker-that-is-full", "heartbeat_interval_seconds": 600}
    site.ask("/work_pools/crowded/workers/heartbeat", heartbeat)
    soon = {"type": "SCHEDULED", "state_details": {"scheduled_time": datetime.now(UTC).isoformat()}}
    site.ask(f"/deployments/{late['id']}/create_flow_run", {"state": soon})
    machine.fails(0)  # a run that is due now may wait for its turn
    for _ in range(2):
        wait_for_an_hour(site, late)
    wrong = machine.fails(5, "late_runs")
    fact, remedy = wrong["late_runs"]
    assert fact.endswith("waited for a worker of the work pool crowded for 15 minutes: 2")
    assert "`trainwright worker --pool crowded`" in remedy

    homeless = deployed(site, None)
    wrong = machine.fails(5, "late_runs", "no_pool")
    assert wrong["no_pool"][0].endswith("so that nothing runs: of-None")
    assert wrong["no_pool"][1] == "Deploy them again: `trainwright deploy SPEC --pool POOL`."
    site.ask(f"/deployments/{homeless['id']}", {"paused": True}, method="PATCH")
    machine.fails(5, "late_runs")  # what a person paused is not looked at


def test_a_worker_that_died_and_one_of_another_server(machine: Machine) -> None:
    mark = "a-mark-of-this-test"
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, "TRAINWRIGHT_MARK": mark}, stdin=subprocess.PIPE
    )
    state = {"pid": process.pid, "mark": mark, "url": "http://127.0.0.1:9/api"}
    (machine.home / "worker.json").write_text(json.dumps(state))
    machine.fails(5, "worker_elsewhere")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wrong = machine.fails(5, "worker_died")
    assert f"pid {process.pid}" in wrong["worker_died"][0]
    assert "`trainwright up`" in wrong["worker_died"][1]


def test_a_server_of_a_team_that_does_not_answer_or_refuses(machine: Machine) -> None:
    machine.env["PREFECT_API_AUTH_STRING"] = "team:not-the-password"
    machine.fails(2, "server_refuses")
    machine.env["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    wrong = machine.fails(5, "server_away")
    assert "`systemctl start trainwright-server`" in wrong["server_away"][1]
    shown = trainwright("status", env=machine.env)
    assert "http://127.0.0.1:9/api (from PREFECT_API_URL) does not answer" in shown.stdout
    assert "(`trainwright up` starts it)" not in shown.stdout
