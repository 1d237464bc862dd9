"""infra/compose: nothing is open to the network, no secret has a default, and each file that it names is there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import traces as telemetry
from infra.orchestrator import team_server
from infra.telemetry import json_asked
from tests.support.postgres import PASSWORD, Postgres
from tests.support.views import BOARDS

FOLDER = Path(__file__).parents[3] / "infra" / "compose"
TEXT = (FOLDER / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SECRETS = ("POSTGRES_PASSWORD", "PREFECT_DATABASE_PASSWORD", "NAMES_PASSWORD", "REDIS_PASSWORD", "STORE_KEY",
           "STORE_SECRET", "PREFECT_PASSWORD", "GRAFANA_PASSWORD")  # fmt: skip


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def test_every_port_is_on_loopback() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert sorted(ports) == ["grafana", "proxy", "s3"]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for given in ports.values() for port in given)
    assert not any("network_mode" in service or service.get("privileged") for service in SERVICES.values())


def test_every_image_is_pinned_and_ours_log_in_json() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    ours = [name for name, image in images.items() if image.startswith("trainwright:")]
    assert ours == ["server", "worker"]
    assert all("build" in SERVICES[name] and json_asked(SERVICES[name]["environment"]) for name in ours)
    others = [image for name, image in images.items() if name not in ours]
    assert [image for image in others if not re.fullmatch(r"[a-z/]+:v?\d+\.\d+(\.\d+)?", image)] == []


def test_every_secret_must_be_given() -> None:
    named = re.findall(r"(?<!\$)\$\{(\w+)([^}]*)\}", TEXT)
    assert {name for name, _ in named} - {"TORCH", "PIP_EXTRA_INDEX_URL", "PREFECT_ADDRESS"} == {*SECRETS, "PROJECTS"}
    assert [name for name, rest in named if name in SECRETS and not rest.startswith(":?")] == []
    # Compose refuses a secret whose variable is not set.
    secrets = {
        "metrics_token": {"environment": "METRICS_TOKEN"},
        "prefect_password": {"environment": "PREFECT_PASSWORD"},
    }
    assert COMPOSE["secrets"] == secrets
    page = (FOLDER.parents[1] / "docs" / "team-server.md").read_text()
    assert [name for name in (*SECRETS, "METRICS_TOKEN", "PROJECTS") if name not in page] == []
    # No password is an argument, which other users of the host may read.
    commands = [service.get("command", "") for service in SERVICES.values()]
    assert not any(re.search(r"(?<!\$)\$\{", str(command)) for command in commands)


HOSTILE = """
CREATE TABLE t (a int);
INSERT INTO t VALUES (8);
CREATE FUNCTION g() RETURNS void LANGUAGE plpgsql AS
  $$ BEGIN EXECUTE 'COPY (SELECT 1) TO PROGRAM ''touch RAN'''; END $$;
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM public.g(); RETURN 1; END $$;
CREATE INDEX i ON t (public.f(a));
"""


@pytest.mark.apt("postgresql")
def test_a_restore_as_documented_takes_an_honest_dump_and_a_hostile_one_runs_nothing(
    tmp_path: Path, postgres: Postgres
) -> None:
    """The commands are those of docs/team-server.md, without Docker, and with the superuser of this server."""
    (tmp_path / "pgpass").write_text(f"*:*:*:tw:{PASSWORD}\n*:*:*:names:of-names\n")
    (tmp_path / "pgpass").chmod(0o600)
    environ = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGPASSFILE": f"{tmp_path}/pgpass"}
    environ |= {"PREFECT_DATABASE_PASSWORD": "of-prefect", "NAMES_PASSWORD": "of-names"}

    def call(command: str, text: str = "") -> tuple[int, str]:
        command = command.replace("--username=postgres", "--username=tw")
        done = subprocess.run(
            ["sh", "-c", command], env=environ, input=text, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout.strip() or done.stderr

    page = (FOLDER.parents[1] / "docs" / "team-server.md").read_text().replace("backups/2026-11-26", str(tmp_path))
    dump, restore = re.findall(r"^docker compose exec -T postgres (pg_\w+ .*names\.dump)$", page, re.MULTILINE)
    sql = "psql --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 --username=postgres"
    rows = f"{sql} names --command='SELECT a, tableowner FROM t, pg_tables WHERE tablename = $$t$$'"
    assert call((FOLDER / "databases.sh").read_text())[0] == 0
    assert call(f"{sql} names", "SET ROLE names; CREATE TABLE t (a int); INSERT INTO t VALUES (7)")[0] == 0
    assert [call(dump)[0], call(restore)[0], call(rows)] == [0, 0, (0, "7|names")]

    ran = Path(f"/tmp/trainwright-{os.getpid()}-ran")
    assert call(f"{sql} postgres", HOSTILE.replace("RAN", str(ran))) == (0, "")
    assert ran.exists()  # so this server lets a superuser do so
    ran.unlink()
    assert call(dump.replace(" names >", " postgres >"))[0] == 0
    restored, has_run = call(restore)[0], ran.exists()
    ran.unlink(missing_ok=True)
    assert (restored != 0, has_run) == (True, False)
    assert call(rows) == (0, "7|names")


def test_every_file_is_there() -> None:
    mounts = [mount.split(":") for service in SERVICES.values() for mount in service.get("volumes", [])]
    files = [parts[0] for parts in mounts if parts[0].startswith(".")]
    assert len(files) == 7
    assert [name for name in files if not (FOLDER / name).exists()] == []
    named = {parts[0] for parts in mounts} - set(files)
    assert {name for name in named if not name.startswith("$")} == set(COMPOSE["volumes"])
    assert os.access(FOLDER / "databases.sh", os.X_OK)
    assert (FOLDER / "../dashboards").resolve() == BOARDS[0].parent, "tests of the dashboards look at these"


def test_what_grafana_and_prometheus_are_told_fits() -> None:
    mounted = {mount.split(":")[1] for mount in SERVICES["grafana"]["volumes"] + SERVICES["prometheus"]["volumes"]}
    [provider] = read("grafana/dashboards.yml")["providers"]
    assert provider["options"]["path"] in mounted
    [source] = read("grafana/datasources.yml")["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    config = read("prometheus.yml")
    assert set(config["rule_files"]) <= mounted
    job, servers = config["scrape_configs"]
    worker = SERVICES["worker"]["environment"]
    ports = tuple(found["port"] for found in job["dns_sd_configs"])
    assert telemetry.metrics_settings(worker).ports == ports
    assert {name for found in job["dns_sd_configs"] for name in found["names"]} <= set(SERVICES)
    assert {found["names"][0] for found in servers["dns_sd_configs"]} == {"server"}
    password = servers["basic_auth"]["password_file"]
    assert password.rpartition("/")[2] in {secret["source"] for secret in SERVICES["prometheus"]["secrets"]}
    assert SERVICES["server"]["environment"]["PREFECT_SERVER_API_AUTH_STRING"].startswith(
        f"{servers['basic_auth']['username']}:"
    )
    assert job["authorization"]["credentials_file"] == worker[telemetry.METRICS_TOKEN_FILE]


def test_the_servers_would_start_with_these_settings() -> None:
    given = {name: re.sub(r"\$\{\w+:\?[^}]*\}", "0123456789abcdef", str(value)) for name, value in
             SERVICES["server"]["environment"].items()}  # fmt: skip
    team_server.check_settings(
        team_server.Settings(
            host=given["PREFECT_SERVER_API_HOST"],
            auth_string=given[team_server.SERVER_AUTH],
            database=given[team_server.DATABASE],
            redis=given[team_server.REDIS],
        )
    )
    assert SERVICES["server"]["command"] == ["trainwright", "server", "start"]
    # Workers call the server by the name of its host, which is one that it answers to.
    assert SERVICES["worker"]["environment"]["PREFECT_API_URL"] == f"http://{SERVICES['server']['hostname']}:4200/api"
    assert SERVICES["server"]["deploy"]["replicas"] > 1


@pytest.mark.apt("prometheus")
def test_prometheus_reads_its_settings() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", str(FOLDER / "prometheus.yml")], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_redis_gets_its_password_in_a_file(tmp_path: Path) -> None:
    [command] = SERVICES["redis"]["command"]
    script = command.replace("$$", "$").replace("/tmp/redis.conf", str(tmp_path / "redis.conf"))
    assert script != command
    program = tmp_path / "redis-server"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    environ = {"REDIS_PASSWORD": "a-secret", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(["/bin/sh", "-ec", script], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(tmp_path / "redis.conf")
    written = tmp_path / "redis.conf"
    assert written.read_text() == "requirepass a-secret\nappendonly yes\ndir /data\n"
    assert written.stat().st_mode & 0o077 == 0
