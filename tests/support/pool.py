"""Work pools with real workers on this session's real Prefect server, and gangs that run on them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.processes.processes import find_marked, kill_marked, marked_env, new_mark
from infra.store import Store, layout, open_store
from tests.support.conducted import Conducted
from tests.support.conducting import TRAINING
from tests.support.speed.children import import_path
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
# Before a Python text, in place of `python -c`: the process may be forked.
ASKED = (sys.executable, "-m", "tests.support.asked")
# A flow run takes its time to start where the suite runs beside it.
DEFAULTS: dict[str, Any] = {"devices": 1, "rollcall_timeout_s": 150}
# Of nodes whose processes stand still for a while; no test here waits for either limit.
PATIENT = {"silence_s": 90, "hang_s": 600}
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def api_client(url: str, password: str, timeout_s: float = 120) -> httpx.Client:
    """A client of a Prefect server's API that shows it the password."""
    user, _, rest = password.partition(":")
    return httpx.Client(base_url=url, auth=(user, rest), trust_env=False, timeout=timeout_s)


def password_in(home: Path) -> str:
    """The password of the server that was started with this state folder."""
    return (home / "password").read_text().strip()


def settings_of(store: Store, folder: Path, pool: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of `tests.support.pooled`, whose output is in `folder`: what a test leaves out has a default."""
    launch = {**PATIENT, **options.get("launch", {})}
    own = {"storage_options": store.storage_options, "folder": str(folder), "pool": pool}
    return {**own, **DEFAULTS, **options, "launch": launch}


class Site:
    """One server, and the workers that were started for it: as if on another machine, with a state folder of their own.

    Attributes:
        nodes_home: the state folder of what the workers start.
        wheels: the only place from which the workers' machine installs packages.
    """

    def __init__(self, url: str, folder: Path, password: str) -> None:
        self.url, self.folder = url, folder
        self.api = api_client(url, password)
        self.workers: dict[str, str] = {}
        self.conductors: list[str] = []
        self.nodes_home, self.wheels = folder / "nodes", folder / "wheels"
        self.environment = {
            "PREFECT_API_URL": url,
            "PREFECT_API_AUTH_STRING": password,
            "PYTHONPATH": import_path(),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
        }

    def ask(self, path: str, body: Any = None, method: str = "POST") -> Any:
        """The server's answer; the request is repeated while its SQLite database is locked."""
        while (answer := self.api.request(method, path, json=body or {})).status_code == 503:
            time.sleep(0.2)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def pool(self, name: str, *, limit: int | None = None, slots: int | None = None, worker: bool = True) -> str:
        """Make a process pool, with a worker that the server has heard of; a pool of another test gives way."""
        for left in (f"/work_pools/{name}", f"/v2/concurrency_limits/{name}"):
            until(lambda path=left: self.api.delete(path).status_code in (204, 404))
        self.ask("/work_pools/", {"name": name, "type": "process", "concurrency_limit": limit})
        if slots is not None:
            self.ask("/v2/concurrency_limits/", {"name": name, "limit": slots})
        if worker:
            self.work(name)
        return name

    def work(self, pool: str, *, limit: int | None = None) -> str:
        """Start a worker, of at most so many runs at a time; its mark."""
        mark = new_mark()
        self.workers[f"{pool}-{len(self.workers)}"] = mark
        command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", pool]
        command += [] if limit is None else ["--limit", str(limit)]
        with (self.folder / f"worker-{pool}.txt").open("a") as log:
            subprocess.Popen(
                [*command, "--name", f"w{len(self.workers)}"],
                env={
                    **marked_env(mark),
                    **self.environment,
                    "TRAINWRIGHT_HOME": str(self.nodes_home),
                    "PIP_NO_INDEX": "1",
                    "PIP_FIND_LINKS": str(self.wheels),
                    "UV_OFFLINE": "1",
                    "UV_FIND_LINKS": str(self.wheels),
                },
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(
            lambda: self.ask(f"/work_pools/{pool}/workers/filter"), what=(self.folder / f"worker-{pool}.txt").read_text
        )
        return mark

    def stop_work(self, pool: str) -> None:
        """End the workers of a pool, which would go on asking for runs beside the tests that follow."""
        for name, mark in self.workers.items():
            if name.startswith(f"{pool}-"):
                kill_marked(mark)

    def conduct_in_worker(self, pool: str, store: Store, fake: dict[str, Any], **options: Any) -> dict[str, Any]:
        """A flow run, carried out by a worker of the pool, that trains fake ranks there."""
        settings = settings_of(store, Path(store.uri).parent, pool, options)
        return self.run(pool, "pooled", {"store": store.uri, "fake": fake, "options": settings})

    def run(self, pool: str, flow: str, parameters: dict[str, Any], entrypoint: str = "") -> dict[str, Any]:
        """A flow run, by default of a flow in `tests.support.pooled`, to be executed by a worker of the pool."""
        known = self.ask("/flows/", {"name": flow})
        where = {"entrypoint": entrypoint or f"tests.support.pooled.{flow}", "work_pool_name": pool}
        deployment = self.ask("/deployments/", {"name": pool, "flow_id": known["id"], **where})
        return self.ask(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})

    def execute_again(self, run: dict[str, Any]) -> None:
        """Let a worker execute a flow run once more, whatever became of it so far."""
        again = {"type": "SCHEDULED", "name": "AwaitingRetry"}
        self.ask(f"/flow_runs/{run['id']}/set_state", {"state": again, "force": True})

    def now(self, run: dict[str, Any]) -> dict[str, Any]:
        """The flow run as the server has it."""
        return self.ask(f"/flow_runs/{run['id']}", method="GET")

    def pause(self, *titles: str) -> None:
        """Let the schedules of deployments start nothing more: what a test starts is all that there is."""
        for title in titles:
            deployment = self.ask(f"/deployments/name/{title}", method="GET")
            self.ask(f"/deployments/{deployment['id']}/pause_deployment")

    def log_lines(self, run: dict[str, Any]) -> list[tuple[int, str]]:
        """The level and the text of each line in the flow run's log, in order."""
        asked = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return [(line["level"], line["message"]) for line in self.ask("/logs/filter", asked)]

    def cancel(self, run: dict[str, Any]) -> None:
        """What the button in Prefect's pages does."""
        self.ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}})

    def state(self, run: dict[str, Any]) -> str:
        """Type of a run's state."""
        return str(self.now(run)["state"]["type"])

    def slots(self, pool: str) -> int:
        """Slots of the pool's limit that are taken."""
        return int(self.ask(f"/v2/concurrency_limits/{pool}", method="GET")["active_slots"])

    def runs(self, store: Store) -> list[dict[str, Any]]:
        """The node runs of a store, in the order of their starts."""
        found = self.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["node"]}}, "sort": "START_TIME_ASC"})
        return [run for run in found if run["parameters"]["store"] == store.uri]

    def ended_runs(self, store: Store) -> list[dict[str, Any]]:
        """The same, once all have their last state."""
        until(lambda: all(run["state"]["type"] in FINAL for run in self.runs(store)), what=lambda: self.runs(store))
        return self.runs(store)

    def close(self) -> None:
        """End all conductors and workers, and what they started; take back what tests that follow would find."""
        for mark in (*self.conductors, *self.workers.values()):
            kill_marked(mark)
        for kind in ("automations", "deployments"):
            for one in self.ask(f"/{kind}/filter"):
                self.ask(f"/{kind}/{one['id']}", method="DELETE")
        self.api.close()


class Conductor(Conducted):
    """A program that trains fake ranks on a pool of a site, in `folder`; by default the store is there, too."""

    def __init__(
        self,
        site: Site,
        folder: Path,
        pool: str,
        fake: dict[str, Any] | None = None,
        *,
        store: Store | None = None,
        **options: Any,
    ) -> None:
        self.site = site
        mark = new_mark()
        site.conductors.append(mark)
        store = store or open_store(str(folder / "store"))
        settings = settings_of(store, folder, pool, options)
        words = ["tests.support.pooled", store.uri, json.dumps(fake or {}), json.dumps(settings)]
        super().__init__(folder, store, words, {**marked_env(mark), **site.environment})


def processes_of(site: Site, *runs: Store | dict[str, Any]) -> list[int]:
    """Live processes of flow runs, or of a store's node runs: flows, supervisors, agents, ranks, what they started."""
    return list(_flow_run_of(site, *runs))


def commands_of(site: Site, *runs: Store | dict[str, Any]) -> set[tuple[bytes, bytes]]:
    """The flow run and the command line of the same; a process and the fork that carries it out are one."""
    flow_runs = _flow_run_of(site, *runs)
    return {(flow_runs[pid], command) for pid, command in command_lines(flow_runs).items()}


def command_lines(pids: Iterable[int]) -> dict[int, bytes]:
    """The command line of each of these processes that still lives."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def _flow_run_of(site: Site, *runs: Store | dict[str, Any]) -> dict[int, bytes]:
    """The flow run to which each of the live processes belongs."""
    named = [one for run in runs for one in (site.runs(run) if isinstance(run, Store) else [run])]
    ids = [one["id"].encode() for one in named]
    found: dict[int, bytes] = {}
    for pid in (pid for mark in site.workers.values() for pid in find_marked(mark)):
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if flow_run := _named(ids, environment):
                found[pid] = flow_run
    return found


def _named(ids: list[bytes], environment: bytes) -> bytes:
    """The flow run that an environment names; nothing if it is none of these."""
    return next((one for one in ids if b"PREFECT__FLOW_RUN_ID=" + one in environment), b"")


def node_flow(site: Site, gang: Conductor, node: int) -> int:
    """The process of a node's flow run."""
    (run,) = [run for run in site.runs(gang.store) if run["parameters"]["node"] == node]
    return flow_process(site, run)


def flow_process(site: Site, run: dict[str, Any]) -> int:
    """The process that executes a flow run."""
    started = (b"infra.", b"torch", b"training.")
    commands = command_lines(processes_of(site, run))
    return next(pid for pid, command in commands.items() if not any(name in command for name in started))


def cancelled_within(site: Site, pool: str, store: Store, timeout_s: float, what: str) -> None:
    """Every process of the store's two node runs ends in time, and the pool's slots are free."""
    began = time.monotonic()
    until(lambda: not processes_of(site, store), timeout_s, lambda: processes_of(site, store))
    print(f"{what}: the last process ended after {time.monotonic() - began:.1f} s")
    until(lambda: site.slots(pool) == 0)
    assert store.exists(layout.cancel(TRAINING, 0))
    assert [run["state"]["type"] for run in site.ended_runs(store)] == ["CANCELLED"] * 2


@contextlib.contextmanager
def site_with(folder: Path, home: Path) -> Iterator[Site]:
    """This session's server, whose state folder is `home`; pools and workers are made as they are needed."""
    folder.mkdir(exist_ok=True)
    site = Site(server_url(), folder, password_in(home))
    try:
        yield site
    finally:
        site.close()


def site_of(pool: str | None = None, **options: Any) -> Any:
    """A fixture of a module: this session's server, with a pool if one is named (`Site.pool` has the options)."""

    @pytest.fixture(scope="module")
    def site(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Site]:
        with site_with(tmp_path_factory.mktemp("site"), state_folder / "home") as site:
            if pool is not None:
                site.pool(pool, **options)
            yield site

    return site


def model_events(site: Site, model: str) -> list[dict[str, Any]]:
    """The events about a model that the server has."""
    wanted = {"resource": {"id": [f"trainwright.model.{model}"]}, "event": {"prefix": ["trainwright.model."]}}
    return list(site.ask("/events/filter", {"filter": wanted})["events"])


def server_url() -> str:
    """The address of this session's server, started if it is not there."""
    code = "from infra.orchestrator.server import ensure_server; print(ensure_server().url)"
    environment = {**os.environ, "PYTHONPATH": import_path()}
    done = subprocess.run([*ASKED, code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]
