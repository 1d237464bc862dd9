"""A team's server on a real PostgreSQL: a run and a deployment are there again after a backup is restored."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from infra.orchestrator.team_server import DATABASE
from tests.support.pool import ASKED, api_client
from tests.support.postgres import Postgres
from tests.support.team_server import PASSWORD, client_settings, environment_of, migrate, server_settings, team_server
from tests.support.tiny import SUITE, answer, trainwright, write_project

pytestmark = pytest.mark.usefixtures("forked_prefect")
PREFECT = [sys.executable, "-m", "prefect"]
REJECTING = {**SUITE, "expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}]}


def kept(url: str) -> dict[str, list[dict[str, Any]]]:
    """The pipeline's flow runs and deployments."""
    with api_client(url, PASSWORD) as api:
        ours = {"flows": {"name": {"any_": ["retrain"]}}}
        return {
            kind: api.post(f"/{kind}/filter", json=ours).raise_for_status().json()
            for kind in ("flow_runs", "deployments")
        }


def problems(doctor: subprocess.CompletedProcess[str]) -> list[str]:
    return [one["problem"] for one in json.loads(doctor.stdout)["checks"] if not one["ok"]]


def carry_out(command: str, url: str, folder: Path) -> None:
    """A command of docs/team-server.md, on this database and with this folder of backups."""
    page = (Path(__file__).parents[2] / "docs" / "team-server.md").read_text().replace("\\\n", "")
    [line] = re.findall(rf"^{command} --host.*$", page, re.MULTILINE)
    for name, value in (("/backups/2026-11-26", str(folder)), ("=prefect ", "={} ")):
        line = line.replace(name, value)
    database = urlsplit(url)
    line = line.format(database.username, database.path.removeprefix("/"))
    environ = {**os.environ, "PGPORT": str(database.port), "PGPASSWORD": str(database.password)}
    subprocess.run(["sh", "-c", line], env=environ, check=True, timeout=300)


def make_pool(url: str) -> None:
    with api_client(url, PASSWORD) as api:
        api.post("/work_pools/", json={"name": "trainwright", "type": "process"}).raise_for_status()


def register_blocks_at_once(server: Mapping[str, str]) -> None:
    """As two servers do that start on a new database: Prefect's own way ends one of them."""
    asked = "from infra.orchestrator.team_server import register_blocks; register_blocks()"
    both = [subprocess.Popen([*ASKED, asked], env=environment_of(server)) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]


@pytest.mark.apt("postgresql")
def test_a_run_and_a_deployment_are_there_after_a_restore(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(home))
    spec = write_project(tmp_path / "tiny")
    (tmp_path / "tiny" / "suite.json").write_text(json.dumps(REJECTING))
    first, second = (server_settings(postgres.prefect_database(), home) for _ in range(2))
    refused = trainwright("server", "start", env=first)
    assert refused.returncode == 2
    assert "The database has no tables of Prefect" in refused.stderr
    migrate(first)
    register_blocks_at_once(first)
    with team_server(first, tmp_path / "first.log") as url:
        assert httpx.get(f"{url}/admin/version", trust_env=False, timeout=60).status_code == 401
        make_pool(url)
        done = trainwright("run", spec, "--json", env=client_settings(first))
        assert done.returncode == 3, done.stderr
        deployed = trainwright("deploy", spec, "--cron", "0 3 * * *", env=client_settings(first))
        assert deployed.returncode == 0, deployed.stderr
        before = kept(url)  # the server may schedule more runs at any time
        with api_client(url, PASSWORD) as api:  # as the page says: a backup is made while the pool is paused
            api.patch("/work_pools/trainwright", json={"is_paused": True}).raise_for_status()
        backup.mkdir()
        carry_out("pg_dump", first[DATABASE], backup)
    carry_out("pg_restore", second[DATABASE], backup)
    with team_server(second, tmp_path / "second.log") as url:
        after = kept(url)
        shown = trainwright("status", env=client_settings(second))
        refused = trainwright("deploy", spec, "--start", env=client_settings(second))
        unwell = trainwright("doctor", "--json", env=client_settings(second))
        resumed = [*PREFECT, "work-pool", "resume", "trainwright"]
        subprocess.run(resumed, env={**os.environ, **client_settings(second)}, check=True, capture_output=True)
        better = trainwright("doctor", "--json", env=client_settings(second))
    assert refused.returncode == unwell.returncode == better.returncode == 5
    assert "`prefect work-pool resume trainwright`" in refused.stderr
    assert "`prefect work-pool resume trainwright`" in shown.stdout
    assert [problems(done) for done in (unwell, better)] == [["pool_paused"], ["no_worker"]]
    run_id = answer(done)["run_id"]
    assert run_id in shown.stdout
    runs = {(run["id"], run["name"], run["state_name"]) for run in before["flow_runs"]}
    assert (run_id in repr(runs), "Rejected" in repr(runs)) == (True, True)
    assert runs <= {(run["id"], run["name"], run["state_name"]) for run in after["flow_runs"]}
    assert [one["id"] for one in after["deployments"]] == [one["id"] for one in before["deployments"]] != []
    texts = [log.read_text() for log in (tmp_path / "first.log", tmp_path / "second.log")]
    assert not any(secret in text for text in texts for secret in (PASSWORD.partition(":")[2], "a-database-password"))
