"""A PostgreSQL server for tests, from Debian's package, and a way to lose its answer to a commit.

Its fixture `postgres` is imported by `tests/conftest.py` alone, so that a process of tests has one server;
`postgres.prefect_database()` makes a new database for a Prefect server.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.approved import approve_here
from tests.support.waiting import free_port, until

PASSWORD_IN, PASSWORD = "TEST_POSTGRES_PASSWORD", "a-database-password"


class Postgres:
    """A running server whose user `tw` has a password, which is named. `port` is where it listens on loopback."""

    def __init__(self) -> None:
        os.environ[PASSWORD_IN] = PASSWORD
        self._numbers = itertools.count()
        self._programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        # It refuses to run as root; Debian's package brings a user for it.
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._root = Path(tempfile.mkdtemp(prefix="trainwright-postgres-"))
        shutil.chown(self._root, self._user) if os.geteuid() == 0 else None
        (self._root / "password").write_text(os.environ[PASSWORD_IN])
        (self._root / "password").chmod(0o644)
        data = str(self._root / "data")
        password = f"--pwfile={self._root / 'password'}"
        asked = ["initdb", "-D", data, "-U", "tw", "--auth=scram-sha-256", password, "-E", "UTF8", "--no-sync"]
        self._call([*asked, "--locale=C.UTF-8"]).wait()
        self.port = free_port()  # chosen late: nothing else may take it before the server does
        # fsync off: what is tested here are processes and answers, not power cuts.
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._root}", "-c", "fsync=off"]
        self._process = self._call(["postgres", "-D", data, "-p", str(self.port), *options])
        asked = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        until(lambda: self._call(asked).wait() == 0, what=lambda: "PostgreSQL did not start")

    def url(self, port: int | None = None, password: str = f"env:{PASSWORD_IN}") -> str:
        """The address of its database, with the password named."""
        address = f"postgresql://tw:{password}@127.0.0.1:{port or self.port}/postgres"
        approve_here(address, password)
        return address

    def prefect_database(self) -> str:
        """The address of a new empty database, as PREFECT_SERVER_DATABASE_CONNECTION_URL names it."""
        name = f"prefect_{next(self._numbers)}"
        created = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tw", "-d", "postgres"]
        created += ["-c", f"CREATE DATABASE {name}"]
        subprocess.run(created, env={**os.environ, "PGPASSWORD": PASSWORD}, check=True, capture_output=True)
        return f"postgresql+asyncpg://tw:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._root)

    def _call(self, command: list[str]) -> subprocess.Popen[bytes]:
        program = str(self._programs / command[0])
        return subprocess.Popen(
            [program, *command[1:]],
            cwd=self._root,
            user=self._user if os.geteuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the session."""
    server = Postgres()
    yield server
    server.stop()


class LosesCommits:
    """A proxy in front of it that has the next `times` commits carried out, then closes the connection."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.times = self.lost = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        losing = threading.Event()
        back = threading.Thread(target=self._back, args=(client, server, losing), daemon=True)
        back.start()
        while data := _received(client):
            if b"COMMIT" in data and self.times > 0:  # two threads may have taken the last
                self.times -= 1
                losing.set()
            server.sendall(data)
        server.close()

    def _back(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        while data := _received(server):
            if losing.is_set():  # it was carried out: the server has answered
                self.lost += 1
                break
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)
        client.close()


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(65536)
    except OSError:
        return b""
