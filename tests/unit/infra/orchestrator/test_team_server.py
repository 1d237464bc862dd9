"""What a team's server refuses before it listens. (The server itself: tests/integration/test_team_server.py.)"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.orchestrator import team_server
from infra.orchestrator.team_server import Settings, check_settings, server_environment
from infra.telemetry import LOG_FORMAT, PREFECT_IN_JSON

GOOD = Settings(
    auth_string="team:a-long-enough-password", database="postgresql+asyncpg://me:in-the-database@db/prefect"
)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"auth_string": ""}, "is not set, and a team's server answers nobody without a password, wherever it listens"),
        ({"auth_string": "", "host": "0.0.0.0"}, "PREFECT_SERVER_API_AUTH_STRING is not set"),
        ({"auth_string": "", "host": "::"}, "PREFECT_SERVER_API_AUTH_STRING is not set"),
        ({"auth_string": "a-password-without-a-user"}, "is not user:password"),
        ({"auth_string": ":a-password-without-a-user"}, "is not user:password"),
        ({"auth_string": "team:a-password-with-ä-in-it"}, "is not user:password in ASCII"),
        ({"auth_string": "team:a password with spaces"}, "without spaces"),
        ({"auth_string": "team:fifteen-letters"[:20]}, "has a password of 15 characters, and 16 are the least"),
        ({"host": "db.internal"}, "PREFECT_SERVER_API_HOST is 'db.internal', which is not an IP address"),
        ({"host": ""}, "PREFECT_SERVER_API_HOST is '', which is not an IP address"),
        ({"port": 0}, "PREFECT_SERVER_API_PORT is 0, which is not a port"),
        ({"port": 70_000}, "PREFECT_SERVER_API_PORT is 70000"),
        ({"database": ""}, "names no PostgreSQL database"),
        ({"database": "sqlite+aiosqlite:////srv/prefect.db"}, "names no PostgreSQL database"),
        ({"database": "postgresql://me:in-the-database@db/prefect"}, "names no PostgreSQL database"),
        ({"database": "postgresql+asyncpg://me:in-the-database@db"}, "names no PostgreSQL database"),
        ({"database": "postgresql+asyncpg://me@db:in-the-database/prefect"}, "names no PostgreSQL database"),
        ({"database": "postgresql+asyncpg://[:in-the-database"}, "names no PostgreSQL database"),
        ({"redis": "redis://redis:6379/0"}, "PREFECT_REDIS_MESSAGING_URL holds no password"),
        ({"redis": "http://:secret@redis:6379/0"}, "PREFECT_REDIS_MESSAGING_URL is not an address"),
        ({"redis": "redis://[:secret@redis"}, "PREFECT_REDIS_MESSAGING_URL is not an address"),
    ],
)
def test_one_sentence_that_shows_no_secret(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_settings(dataclasses.replace(GOOD, **change))  # type: ignore[arg-type]
    assert sentence in caught.value.message
    secrets = ("in-the-database", "secret@", str(change.get("auth_string") or "-").partition(":")[2] or "a-long-enough")
    assert not any(secret in str(caught.value) for secret in secrets)
    assert "in-the-database" not in repr(GOOD)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::", "::1", "192.0.2.7"])
def test_with_a_password_it_may_listen_anywhere(host: str) -> None:
    assert team_server.ip_address_of(host) is not None
    check_settings(dataclasses.replace(GOOD, host=host))


def test_redis_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = dataclasses.replace(GOOD, redis="rediss://:secret@redis:6379/0")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="prefect-redis is not installed"):
        check_settings(wanted)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    check_settings(wanted)


@pytest.mark.parametrize("redis", ["", "redis://:secret@redis:6379/0"])
def test_prefects_own_lines_are_json_where_ours_are(redis: str) -> None:
    text, json = (
        server_environment({"PREFECT_REDIS_MESSAGING_URL": redis, LOG_FORMAT: kind}) for kind in ("text", "json")
    )
    assert json.items() - text.items() == {("PREFECT_LOGGING_SETTINGS_PATH", str(PREFECT_IN_JSON))}


def test_all_that_prefect_keeps_in_memory_goes_to_redis() -> None:
    assert server_environment({}) == server_environment({"PREFECT_REDIS_MESSAGING_URL": ""})
    assert server_environment({})["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] == "false"
    with_redis = server_environment({"PREFECT_REDIS_MESSAGING_URL": "redis://:secret@redis:6379/0"})
    assert set(server_environment({})) < set(with_redis)
    assert with_redis["PREFECT_SERVER_DOCKET_URL"] == "redis://:secret@redis:6379/0"
    modules = {value for value in with_redis.values() if value.startswith("prefect_redis.")}
    for name in modules:
        assert importlib.import_module(name)
    # Prefect's own settings take each of them.
    asked = (
        "from prefect.settings import get_current_settings as now; s = now().server; e = s.events;"
        "print(e.messaging_broker, e.messaging_cache, e.causal_ordering, s.concurrency.lease_storage,"
        " s.worker_channel.cleanup_queue_storage, s.docket.url, s.database.migrate_on_start, s.analytics_enabled,"
        " s.register_blocks_on_start);"
        "from prefect_redis.cleanup_queue import RedisWorkerCleanupQueueSettings as Q; print(Q().url)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", asked], env={**os.environ, **with_redis}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [
        "prefect_redis.messaging",
        "prefect_redis.messaging",
        "prefect_redis.ordering",
        "prefect_redis.lease_storage",
        "prefect_redis.cleanup_queue",
        "redis://:secret@redis:6379/0",
        "False",
        "False",
        "False",
        "redis://:secret@redis:6379/0",
    ]


def settings_read(repository: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process with these variables of Prefect's alone, which shows its settings and checks them."""
    asked = "from infra.orchestrator import team_server as t; s = t.read_settings();"
    asked += "print(s.host, s.port, s.pages_url); t.check_settings(s)"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ = {**kept, "PYTHONPATH": str(repository), **variables}
    return subprocess.run([sys.executable, "-c", asked], env=environ, capture_output=True, text=True)


def test_a_setting_that_prefect_cannot_read_is_named_without_its_value(repository: Path) -> None:
    error = settings_read(repository, PREFECT_SERVER_API_PORT="secret").stderr.rpartition("UsageError")[2]
    assert "port of ServerAPISettings" in error
    assert "secret" not in error


def test_settings_of_a_profile_count_too(tmp_path: Path, repository: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(
        'active = "team"\n[profiles.team]\nPREFECT_SERVER_API_HOST = "0.0.0.0"\n'
        'PREFECT_SERVER_UI_API_URL = "https://prefect.example/api"\n'
    )
    answer = settings_read(repository, PREFECT_PROFILES_PATH=str(profiles))
    assert answer.stdout.split() == ["0.0.0.0", "4200", "https://prefect.example/api"]
    assert "UsageError: PREFECT_SERVER_API_AUTH_STRING is not set" in answer.stderr


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            team_server._listen("127.0.0.1", port)
