"""Many runs queued at once on a team's server with PostgreSQL: none lost, none twice, none failed; how many a minute.

    python benchmarks/load.py [--quick] [--runs 500] [--workers 4] [--whole 4]

The tests' pipeline of 600 rows. `--whole` runs train with a seed of their own; all others share one training and so
reuse what the first of them sealed. Ctrl-C or SIGTERM stops waiting: what has ended by then is checked and reported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from common import machine

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PARTS = {"postgres": "database", "worker start": "workers", "server": "server"}


def main() -> None:
    """Queue the runs, wait, check, print the figures; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 runs, one of them whole, and 2 workers")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--whole", type=int, default=4, help="runs that train with a seed of their own")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs, arguments.workers, arguments.whole = 6, 2, 1
    from tests.support.postgres import Postgres
    from tests.support.team_server import client_settings, migrate, server_settings, team_server

    print(f"{machine()}; Prefect {version('prefect')}; {vars(arguments)}")
    # SIGINT, too: a shell's background job ignores it, its children inherit that, and a Prefect worker ends by it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    database = Postgres()
    try:
        with tempfile.TemporaryDirectory(prefix="trainwright-load-") as name:
            home = Path(name) / "home"
            settings = server_settings(database.prefect_database(), home)
            os.environ["TRAINWRIGHT_HOME"] = str(home)
            migrate(settings)
            with team_server(settings, Path(name) / "server.log") as url:
                queue_and_wait(Path(name), url, client_settings(settings), arguments)
    finally:
        database.stop()


def queue_and_wait(folder: Path, url: str, client: dict[str, str], arguments: argparse.Namespace) -> None:
    """Deploy the pipeline, queue its runs, start the workers and report."""
    from tests.support.pool import api_client
    from tests.support.team_server import PASSWORD
    from tests.support.tiny import trainwright, write_project

    spec = write_project(folder / "tiny")
    env = {**os.environ, **client}
    with api_client(url, PASSWORD) as api:
        api.post("/work_pools/", json={"name": "trainwright", "type": "process"}).raise_for_status()
        deployed = trainwright("deploy", spec, env=client)
        assert deployed.returncode == 0, deployed.stderr
        [deployment] = api.post("/deployments/filter", json={"flows": {"name": {"any_": ["retrain"]}}}).json()
        for number in range(arguments.runs):
            asked = {**deployment["parameters"]}
            if number < arguments.whole:
                asked["set"] = f"train.seed={number + 100}"
            body = {"parameters": asked, "idempotency_key": f"load-{number}", "state": {"type": "SCHEDULED"}}
            api.post(f"/deployments/{deployment['id']}/create_flow_run", json=body).raise_for_status()
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "trainwright", "--limit", "1"]
        workers = []
        for number in range(arguments.workers):
            log = (folder / f"worker-{number}.log").open("w")
            workers.append(subprocess.Popen([*command, "--name", f"w{number}"], env=env, stdout=log, stderr=log))
        started = time.monotonic()
        try:
            wait(api, arguments.runs, started)
        except KeyboardInterrupt:
            print("stopped: what has ended is reported")
        seconds, spent = time.monotonic() - started, processor_seconds()
        end(workers)
        report(flow_runs(api), spec.parent / ".trainwright", seconds, spent, arguments)


def end(workers: list[subprocess.Popen[bytes]]) -> None:
    """Ask the workers to end; kill those that have not within a minute."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(60)
        except subprocess.TimeoutExpired:
            print(f"worker {worker.pid} is killed: it did not end by SIGTERM")
            worker.kill()


def wait(api: Any, runs: int, started: float) -> None:
    """Until every flow run has ended; prints how many have, every half minute.

    It counts, because reading 500 flow runs every two seconds took the server a third of a core.
    """
    shown, asked = started, {**RETRAIN, "flow_runs": {"state": {"type": {"any_": FINAL}}}}
    while (ended := api.post("/flow_runs/count", json=asked).raise_for_status().json()) < runs:
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{shown - started:6.0f} s: {ended} of {runs} have ended", flush=True)
        time.sleep(2)


RETRAIN = {"flows": {"name": {"any_": ["retrain"]}}}
FINAL = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]


def flow_runs(api: Any) -> list[dict[str, Any]]:
    """Every flow run of the pipeline, from pages of 200."""
    found: list[dict[str, Any]] = []
    while True:
        asked = {**RETRAIN, "offset": len(found), "limit": 200, "sort": "ID_DESC"}
        page = api.post("/flow_runs/filter", json=asked).raise_for_status().json()
        found += page
        if len(page) < 200:
            return found


def processor_seconds() -> dict[str, float]:
    """Processor seconds and, as `…_mib`, memory of the server, the database, the workers and the runs at work."""
    found: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            told = " ".join(process.cmdline())
            part = next((part for sign, part in PARTS.items() if sign in told), "runs")
            found[part] += sum(process.cpu_times()[:4])
            found[f"{part}_mib"] += process.memory_info().rss / 2**20
        except psutil.Error:
            continue
    return dict(found)


def by_fifth(ends: list[str]) -> list[float]:
    """Runs a minute in each fifth of the runs by the order of their ends (ISO 8601), from the first end on."""
    times = sorted(datetime.fromisoformat(end).timestamp() for end in ends)
    edges = [times[round(part * (len(times) - 1) / 5)] for part in range(6)] if len(times) > 5 else []
    runs = (len(times) - 1) / 5
    return [round(runs / max(end - begin, 1e-3) * 60, 2) for begin, end in pairwise(edges)]


def report(
    found: list[dict[str, Any]], store: Path, seconds: float, spent: dict[str, float], arguments: argparse.Namespace
) -> None:
    """Hold the flow runs against the store's records and print what was measured."""
    ended = [run for run in found if run["state_type"] in FINAL]
    kept = {path.name for path in (store / "runs").iterdir()} if (store / "runs").is_dir() else set()
    # A flow run is named by its pipeline, its run and what was set.
    ids = [next((word for word in run["name"].split() if word in kept), run["name"]) for run in ended]
    reports = Counter(run for run in kept if (store / "runs" / run / "report.json").exists())
    states = Counter(run["state_name"] for run in found)
    print(f"states: {dict(states)}; executions: {dict(Counter(run['run_count'] for run in ended))}")
    figures = {
        "queued": arguments.runs,
        "ended": len(ended),
        "lost": len([one for one in ids if not reports[one]]),
        "twice": len(ids) - len(set(ids)) + sum(run["run_count"] != 1 for run in ended),
        "failed": sum(run["state_type"] != "COMPLETED" for run in ended),
        "seconds": round(seconds, 1),
        "runs_per_minute": round(len(ended) / seconds * 60, 2),
        "runs_per_minute_by_fifth": by_fifth([run["end_time"] for run in ended]),
        **{name: round(value, 1) for name, value in spent.items()},
    }
    print(json.dumps(figures))
    if len(ended) == arguments.runs and (figures["lost"] or figures["twice"] or figures["failed"]):
        raise SystemExit("Runs were lost, carried out twice, or failed.")


if __name__ == "__main__":
    main()
