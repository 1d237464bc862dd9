"""Hosts with a Prefect worker each, and a server on this machine that asks all of them for a password."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from infra.processes.processes import kill_marked, marked_env, new_mark
from tests.support.hosts import Hosts
from tests.support.pool import REPOSITORY, Site, until

POOL = "gpu"
AUTH = "soak:soak"


class Cluster:
    """Hosts with a worker each, and a Prefect server that asks all of them for a password."""

    def __init__(self, folder: Path, hosts: int, slots: int) -> None:
        self.folder = folder
        self.hosts = Hosts(hosts)
        self.home = {"TRAINWRIGHT_HOME": str(folder / "home"), "PYTHONPATH": str(REPOSITORY)}
        self._serving = {"PREFECT_SERVER_API_HOST": self.hosts.gateway, "PREFECT_SERVER_API_AUTH_STRING": AUTH}
        self._workers: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        try:
            url = self._server("ensure_server().url")
            self.site = Site(url, folder, AUTH)
            self.site.pool(POOL, slots=slots, worker=False)
            for host in range(hosts):
                self.work(host)
            until(lambda: len(self.site.ask(f"/work_pools/{POOL}/workers/filter")) == hosts)
        except BaseException:
            self.close()
            raise

    def _server(self, what: str) -> str:
        code = f"from infra.orchestrator.server import ensure_server, stop_server; print({what})"
        environment = {**os.environ, **self.home, **self._serving, "PREFECT_API_AUTH_STRING": AUTH}
        told = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert told.returncode == 0, told.stderr
        return told.stdout.split()[-1]

    def work(self, host: int) -> None:
        """Start a host's worker, of one node at a time."""
        mark = new_mark()
        prefect = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", POOL]
        with (self.folder / f"worker-{host}.txt").open("a") as log:
            process = subprocess.Popen(
                [*self.hosts.inside(host), *prefect, "--name", f"host-{host}-{mark[:4]}", "--limit", "1"],
                env={
                    **marked_env(mark),
                    **self.site.environment,
                    "TRAINWRIGHT_HOME": str(self.folder / f"host-{host}"),
                },
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers[host] = mark, process

    def worker(self, host: int) -> subprocess.Popen[bytes]:
        """A host's worker."""
        return self._workers[host][1]

    def working(self) -> list[int]:
        """Hosts whose worker runs."""
        return [host for host, (_, process) in self._workers.items() if process.poll() is None]

    def processes(self, what: str) -> dict[int, psutil.Process]:
        """By host, the process of a node whose command line holds `what`."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if what in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    host = self.hosts.of(process.pid)
                    if host is not None:
                        found[host] = process
        return found

    def left(self, *what: str) -> list[str]:
        """The processes of nodes whose command line holds one of these, in words."""
        found = [(host, process) for one in what for host, process in self.processes(one).items()]
        return [f"host {host}: {process.status()}, {' '.join(process.cmdline())}" for host, process in found]

    def close(self) -> None:
        """End it all."""
        for mark, _ in self._workers.values():
            kill_marked(mark)
        with contextlib.suppress(AssertionError):
            self._server("stop_server()")
        self.hosts.close()
