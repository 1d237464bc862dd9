"""A team's Prefect server in a process of its own, on a database of the tests' PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.speed.children import import_path
from tests.support.waiting import free_port

PASSWORD = "team:a-long-enough-password"


def server_settings(database: str, home: Path) -> dict[str, str]:
    """The environment of a team's server on this database, at a free port of loopback."""
    return {
        "TRAINWRIGHT_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database,
        "PREFECT_SERVER_API_AUTH_STRING": PASSWORD,
        "PREFECT_SERVER_API_PORT": str(free_port()),
    }


def client_settings(server: Mapping[str, str]) -> dict[str, str]:
    """What whoever uses that server sets."""
    url = f"http://127.0.0.1:{server['PREFECT_SERVER_API_PORT']}/api"
    return {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": PASSWORD}


def environment_of(server: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a process on the server's machine."""
    return {**os.environ, "PYTHONPATH": import_path(), **server}


def migrate(server: Mapping[str, str]) -> None:
    """Bring the database's schema up to date, as docs/team-server.md says."""
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    subprocess.run(command, env=environment_of(server), check=True, capture_output=True, timeout=500)


@contextlib.contextmanager
def team_server(server: Mapping[str, str], log: Path) -> Iterator[str]:
    """`trainwright server start`, until the end of the block; its address once it answers."""
    url = client_settings(server)["PREFECT_API_URL"]
    with log.open("wb") as output:
        command = [sys.executable, "-m", "flows.cli", "server", "start"]
        # In a session of its own: Ctrl-C is for whoever asks it, who may still read from it.
        process = subprocess.Popen(
            command, env=environment_of(server), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 480
            while not _answers(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            code = process.wait(480)
    assert code == 0, log.read_text()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
