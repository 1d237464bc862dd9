"""Nights in which processes are killed: a real server, a real worker, the reaper's deployment, and several pipelines.

What a machine's service manager restarts is restarted here: the server and the worker. Nobody resumes a run. The reaper
looks every 20 s and not every three minutes, and Prefect's heartbeats come every 30 s, their shortest interval. Any
number of looks may run at once: so many die in these nights that Prefect's limit of two would hold the others back.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from data_contracts.handoffs import Checkpoint
from infra.processes.environment import FLOW_RUN
from infra.processes.processes import find_marked, has_ended, kill_marked
from infra.store import Store, layout, open_store
from infra.store.lease import held_lease, process_of
from tests.support.pool import ASKED, Site, password_in
from tests.support.speed.children import import_path
from tests.support.tiny import SPEC, write_project, write_rows
from training.checkpoint import read_tensors

POOL = "night"
HEARTBEAT_S = 30
LOOK_EVERY_S = 20
# From the last kill to the last verdict: a flow run that nobody carries out is noticed after five heartbeats.
MORNING_S = 600.0
ANSWER_S = 180.0
ENSURE = """
from infra.orchestrator.server import ensure_server
print(ensure_server().url)
"""
REAPER = """
import sys
from infra.orchestrator.deployments import ensure_system
ensure_system(sys.argv[1])
"""


class Night:
    """The services of a night, the runs of its pipelines, and what was killed.

    Args:
        folder: a new folder for all of it.
        home: the server's state folder, with a database.
        pipelines: how many there are.
    """

    def __init__(self, folder: Path, home: Path, seed: int, pipelines: int) -> None:
        self.folder, self.home, self.pipelines, self.draw = folder, home, pipelines, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.runs: dict[str, dict[str, Any]] = {}
        self._worker = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.site = Site(self._serve(), folder, password_in(home))
        # Under load, a server that began a moment ago may take longer than the client's 30 s.
        self.site.api.timeout = ANSWER_S
        self.site.environment |= {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
        self.site.pool(POOL, worker=False)
        self._worker = self.site.work(POOL)
        self._ask_program(REAPER, POOL)
        changed = {"schedules": self._schedules(), "concurrency_limit": None}
        self.site.ask(f"/deployments/{self._reaper()['id']}", changed, method="PATCH")

    def begin(self, number: int) -> None:
        """Start every pipeline of a new store, by its deployment."""
        root = self.folder / f"round-{number}"
        self.runs = {}
        for variant in range(self.pipelines):
            spec = write_project(root / f"v{variant}", self._spec(variant, root / "store"))
            write_rows(spec.parent / "rows.csv", seed=variant + 1)
            self.runs[f"v{variant}"] = self.site.run(POOL, "retrain", {"spec": str(spec)}, "flows.retrain.retrain")
        self.store = root / "store"

    def strike(self) -> bool:
        """Kill something, or two things at once, and restart what a service manager restarts; False: none was there."""
        kinds: dict[str, Callable[[], int]] = {
            "worker": self._kill_worker,
            "machine": self._kill_machine,
            "flow": lambda: self._kill_flow(self._flows()),
            "stopped flow": lambda: self._kill_flow(self._flows(), signal.SIGTERM),
            "conductor": lambda: self._kill_flow(self._conductors()),
            "server": self._kill_server,
        }
        chosen = self.draw.sample(sorted(kinds), self.draw.choice((1, 1, 2)))
        struck = [kind for kind in chosen if kinds[kind]()]
        if not struck:
            return False
        self.kills[" and ".join(struck)] += 1
        self.say(f"killed {' and '.join(struck)}")
        time.sleep(self.draw.uniform(0, 3))
        self.keep_services()
        return True

    def keep_services(self) -> None:
        """Start the server and the worker unless they live."""
        if not self._alive(self._service("server")):
            self._serve()
        if not any(is_worker(words_of(pid)) for pid in find_marked(self._worker)):
            self._worker = self.site.work(POOL)

    def states(self) -> dict[str, str]:
        """The type of each run's flow run."""
        with contextlib.suppress(httpx.HTTPError):
            return {name: self.site.state(run) for name, run in self.runs.items()}
        return {}

    def has_ended(self) -> bool:
        """Whether every run has its verdict in the store, and its flow run its last state."""
        return set(self.states().values()) == {"COMPLETED"}

    def wait_for_morning(self) -> None:
        """Wait for every run's verdict, and for the end of what the night started."""
        deadline = time.monotonic() + MORNING_S
        while not self.has_ended():
            assert time.monotonic() < deadline, self.describe()
            assert not self.ended_otherwise(), self.describe()
            time.sleep(2)
        ours = {run["id"] for run in self.runs.values()}
        while left := {pid: one for pid, one in self._of_flow_runs().items() if one in ours}:
            assert time.monotonic() < deadline, f"processes are left: {left}"
            time.sleep(1)

    def ended_otherwise(self) -> list[str]:
        """Runs that ended without a final verdict: only a person would resume them."""
        store = open_store(str(self.store))
        return [one for one in store.list(layout.runs()) if store.list(layout.run_attempts(one))]

    def describe(self) -> str:
        """How the runs stand, for a failure."""
        store = open_store(str(self.store))
        states = {name: self.site.now(run) for name, run in self.runs.items()}
        lines = [
            f"{name}: {one['name']} {one['state']['name']} {one['state']['message']}" for name, one in states.items()
        ]
        for run_id in store.list(layout.runs()):
            files = sorted(
                str(path.relative_to(self.store)) for path in (self.store / layout.run(run_id)).rglob("*.json")
            )
            lines.append(f"{run_id}: {held_lease(store, layout.lease(layout.run(run_id)))} {files}")
        return "\n".join(lines)

    def weights(self) -> dict[str, bytes]:
        """The weights that each pipeline promoted, as bytes."""
        store = open_store(str(self.store))
        return {name: promoted_weights(store, name) for name in self.runs}

    def live_leases(self) -> list[str]:
        """Leases of this round that a process holds which lives."""
        store = open_store(str(self.store))
        owners = [layout.run(one) for one in store.list(layout.runs())]
        owners += [f"{layout.trainings()}/{one}" for one in store.list(layout.trainings())]
        leases = {one: held_lease(store, layout.lease(one)) for one in owners}
        processes = {one: process_of(lease.value["holder"]) for one, lease in leases.items() if lease is not None}
        return [one for one, process in processes.items() if process is None or not has_ended(process)]

    def close(self) -> None:
        """End all that the night started."""
        with contextlib.suppress(httpx.HTTPError):
            self.site.close()
        for mark in (*self.site.workers.values(), str(self._service("server").get("mark", ""))):
            if mark:
                kill_marked(mark)

    def say(self, text: str) -> None:
        """Print a line with the states of the runs, as it comes: a sweep takes an hour."""
        print(f"{time.strftime('%H:%M:%S')} {text} {self.states()}", flush=True)

    def _spec(self, variant: int, store: Path) -> dict[str, Any]:
        lightning = {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 12}}
        train = {**SPEC["train"], "lightning": lightning, "checkpoint": {"every_steps": 40}, "seed": variant}
        retry = dict.fromkeys(("crashed", "node_lost", "storage", "preempted"), 200)
        return {"name": f"v{variant}", "train": train, "store": {"uri": str(store)}, "retry": retry}

    def _serve(self) -> str:
        return self._ask_program(ENSURE).split()[-1]

    def _ask_program(self, text: str, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": import_path(), "TRAINWRIGHT_HOME": str(self.home)}
        site = getattr(self, "site", None)
        environment |= {} if text is ENSURE or site is None else site.environment
        done = subprocess.run([*ASKED, text, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _reaper(self) -> dict[str, Any]:
        return dict(self.site.ask(f"/deployments/name/reap/{POOL}", method="GET"))

    def _schedules(self) -> list[dict[str, Any]]:
        (schedule,) = self._reaper()["schedules"]
        every = {"interval": LOOK_EVERY_S, "anchor_date": "2026-01-01T00:00:00Z", "timezone": "UTC"}
        return [{"active": True, "schedule": every, "slug": schedule.get("slug")}]

    def _service(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.home / f"{name}.json").read_text()))
        return {}

    def _alive(self, service: dict[str, Any]) -> bool:
        return bool(service) and service["pid"] in find_marked(service["mark"])

    def _kill_worker(self) -> int:
        """The worker alone: its flow runs go on."""
        return sum(kill(pid) for pid in find_marked(self._worker) if is_worker(words_of(pid)))

    def _kill_machine(self) -> int:
        """The worker and all that it started."""
        return kill_marked(self._worker)

    def _kill_server(self) -> int:
        service = self._service("server")
        return kill_marked(service["mark"]) if service else 0

    def _kill_flow(self, pids: dict[int, str], number: int = signal.SIGKILL) -> int:
        """The processes of one flow run that Prefect's engine runs in; what they started may go on."""
        if not pids:
            return 0
        flow_run = self.draw.choice(sorted(set(pids.values())))
        return sum(kill(pid, number) for pid, one in pids.items() if one == flow_run)

    def _of_flow_runs(self) -> dict[int, str]:
        """All processes of flow runs, each with its flow run."""
        found = {}
        for mark in self.site.workers.values():
            for pid in find_marked(mark):
                with contextlib.suppress(psutil.Error, KeyError):
                    found[pid] = psutil.Process(pid).environ()[FLOW_RUN]
        return found

    def _flows(self) -> dict[int, str]:
        """Prefect's processes that carry out a flow run, those of the reaper among them."""
        return {
            pid: one for pid, one in self._of_flow_runs().items() if any("prefect." in word for word in words_of(pid))
        }

    def _conductors(self) -> dict[int, str]:
        """Those that conduct a training."""
        busy = {one for pid, one in self._of_flow_runs().items() if any("supervisor" in word for word in words_of(pid))}
        return {pid: flow_run for pid, flow_run in self._flows().items() if flow_run in busy}


def promoted_weights(store: Store, model: str) -> bytes:
    """The weights of a model's first version, in the order of their names."""
    told = store.manifest(f"models/{model}/1").provenance["checkpoint"]
    tensors = dict(read_tensors(store.local(Checkpoint.from_json(told).ref)))
    return b"".join(name.encode() + tensors[name].numpy().tobytes() for name in sorted(tensors))


def kill(pid: int, number: int = signal.SIGKILL) -> int:
    """Send a process a signal; how many were there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return 1
    return 0


def words_of(pid: int) -> list[str]:
    """The command line of a process."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []


def is_worker(words: list[str]) -> bool:
    """Whether a command line is that of Prefect's worker."""
    return {"worker", "start"} <= set(words)
