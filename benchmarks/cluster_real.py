"""What `cluster.py` cannot simulate: the flow runs of a large gang on a real Prefect server, and eight real nodes.

The server is Trainwright's own, with SQLite. The nodes are processes of this machine with ranks that only count steps;
their store is a real S3 server of the tests behind a proxy, which delays each answer and counts the requests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TRAINING = "trainings/k-0"
# A worker asks for runs that are due in so many seconds (`PREFECT_WORKER_PREFETCH_SECONDS`).
PREFETCH_S = 10
# So many of the runs are marked as pending.
MARKED = 4
# The states of the flow runs are asked for in a thread; so long its share of a core is measured.
ASKED_S = 60.0


# ---- flow runs


def launches(sizes: Sequence[int], rounds: int, folder: Path) -> dict[int, dict[str, float]]:
    """Medians of the rounds for the last of the sizes, the others once; starts the server, and stops it."""
    os.environ |= {"TRAINWRIGHT_HOME": str(folder / "home"), "PREFECT_HOME": str(folder / "home/prefect")}
    os.environ.pop("PREFECT_API_URL", None)
    os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
    from infra.orchestrator.server import ensure_server, stop_server

    try:
        ensure_server()
        from prefect import flow

        measured: dict[int, list[dict[str, float]]] = {}
        for number in range(rounds):
            for nodes in sizes if number == 0 else sizes[-1:]:
                # A pool for each, so that no worker's request is answered with the runs of another round.
                launched = flow(launch, name="launch")(nodes, f"pool-{nodes}-{number}", str(folder))
                measured.setdefault(nodes, []).append(launched)
                print(f"{nodes:>6,} {launched}", file=sys.stderr, flush=True)
    finally:
        stop_server()
    return {nodes: medians(rows) for nodes, rows in measured.items()}


def launch(nodes: int, pool: str, folder: str) -> dict[str, float]:
    """Create the flow runs of a generation, ask for them as a worker does, and follow their states for a while."""
    from types import SimpleNamespace

    from data_contracts.errors import StorageUnavailable
    from data_contracts.messages.gang import Launch
    from infra.gang.membership import Placement
    from infra.orchestrator.gang import PoolLauncher
    from infra.orchestrator.worker import ensure_pool
    from infra.store import open_store

    store = open_store(str(Path(folder, pool)))
    ensure_pool(pool)  # with the template of a real pool, against which the server checks the variables of each run
    launcher = PoolLauncher(store, TRAINING, Placement(section="train", pool=pool))
    hub: Any = SimpleNamespace(left=set())
    gang = launcher(store, Launch(training=TRAINING, nodes=nodes, devices=8), hub)
    began = time.monotonic()
    while len(gang.runs) < nodes:
        # As a conductor does, which asks again.
        with contextlib.suppress(StorageUnavailable):
            gang.start(range(nodes))
    created_s = time.monotonic() - began
    states = [gang.status(node) for node in range(nodes)]
    assert all("Scheduled" in state or "Late" in state for state in states), states
    asked = ask_as_worker(pool, min(nodes, MARKED))
    share = processor_share(ASKED_S)
    hub.left.update(range(nodes))
    gang.end(range(nodes))
    return {"created_s": created_s, **asked, "states_cpu": share}


def ask_as_worker(pool: str, marked: int) -> dict[str, float]:
    """What a worker does first: ask for the runs that are due, and mark each of some as pending, one after another."""
    from prefect.states import Pending

    from infra.orchestrator.api import asking

    with asking(retries=8, timeout_s=300) as client:
        began = time.monotonic()
        due = datetime.now(UTC) + timedelta(seconds=PREFETCH_S)
        answers = client.get_scheduled_flow_runs_for_work_pool(pool, scheduled_before=due)
        asked_s = time.monotonic() - began
        assert len(answers) >= marked, f"{len(answers)} runs are due"
        for answer in answers[:marked]:
            client.set_flow_run_state(answer.flow_run.id, Pending())
        marked_s = time.monotonic() - began - asked_s
    return {"asked_s": asked_s, "answered": len(answers), "mark_s": marked_s / marked}


def processor_share(seconds: float) -> float:
    """The share of a core that this process needs while it waits."""
    began, spent = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - spent) / (time.monotonic() - began)


# ---- nodes


def nodes_here(nodes: int, latency_s: float, train_s: float, rounds: int, rollcalls: int) -> dict[str, float]:
    """Nodes of one rank each: the time of a request, the requests of a training, and when a stopped node is found."""
    from tests.support.fault_proxy import Fault, FaultProxy
    from tests.support.s3 import S3Server

    os.environ["PYTHONPATH"] = str(ROOT)
    server = S3Server()
    proxy = FaultProxy(server.url)
    proxy.faults.append(Fault("stall", times=10**9, seconds=latency_s))
    try:
        from infra.store import open_store

        options = {**server.options, "endpoint_url": proxy.url}
        store = open_store(f"s3://{server.bucket()}/store", options)
        times = [timed(lambda: store.exists("nothing")) for _ in range(20)]
        with held_lease(store) as token:
            gang = Gang(store, proxy, nodes, token)
            rows = [gang.generation(train_s) for _ in range(rounds)]
            waits = [gang.generation(0.0)["rollcall_s"] for _ in range(rollcalls)]
    finally:
        proxy.stop()
        server.stop()
    waits += [row["rollcall_s"] for row in rows]
    return {**medians(rows), "latency_s": statistics.median(times), "rollcall_s": statistics.median(waits)}


@contextlib.contextmanager
def held_lease(store: Any) -> Iterator[int]:
    """Hold the training's lease as a conductor does; its token."""
    from infra.store import layout
    from infra.store.lease import LeaseKeeper

    keeper = LeaseKeeper(store, layout.lease(TRAINING), "benchmark")
    keeper.start()
    try:
        while (token := keeper.token(0.2)) is None:
            pass
        yield token
    finally:
        keeper.stop()


class Met(Exception):
    """The roll-call is over, and no more is wanted."""


class Gang:
    """Nodes of this machine, in generations one after another."""

    def __init__(self, store: Any, proxy: Any, nodes: int, token: int) -> None:
        self.store, self.proxy, self.nodes, self.token, self.generations = store, proxy, nodes, token, 0

    def generation(self, train_s: float) -> dict[str, float]:
        """The next one, with a node that is stopped after `train_s`; with 0, its roll-call alone."""
        from data_contracts.errors import Interrupted
        from data_contracts.messages.gang import CancelMarker, Launch
        from infra.gang.conductor import Generation, write_launch
        from infra.gang.hub import Hub
        from infra.gang.node import LOOPBACK, LocalNodes

        moments: dict[str, float] = {}
        requests: dict[str, int] = {}

        class Watched(LocalNodes):
            def tell(self, node: int, message: Any) -> None:
                if isinstance(message, CancelMarker):
                    moments.setdefault("told", time.monotonic())
                super().tell(node, message)

        def on_progress(progress: Any) -> None:
            if progress.phase == "training" and not train_s:
                raise Met

        def check() -> None:
            now, ranks = time.monotonic(), generation.reports.liveness.ranks.values()
            if "steps" not in moments:
                if len(ranks) == self.nodes and all(rank.steps for rank in ranks):
                    moments["steps"], requests["before"] = now, len(self.proxy.requests)
            elif "stopped" not in moments and now > moments["steps"] + train_s:
                moments["stopped"], requests["after"] = now, len(self.proxy.requests)
                os.kill(nodes.nodes[self.nodes // 2].pid, signal.SIGSTOP)

        fake = {"steps": 10**9, "every": 10**9, "step_s": 0.5, "trace": os.devnull}
        with contextlib.closing(Hub(LOOPBACK)) as hub:
            launch = Launch(
                training=TRAINING, generation=self.generations, token=self.token, nodes=self.nodes, devices=1,
                entry="tests.support.fake_rank", train={"fake": fake, "global_batch_size": self.nodes},
            )  # fmt: skip
            written = write_launch(self.store, launch, hub)
            assert written is not None, "nobody else takes a number"
            self.generations += 1
            nodes = Watched(self.store, written, hub)
            generation = Generation(nodes, commit=lambda _: None, check=check, on_progress=on_progress)
            with contextlib.suppress(Met, Interrupted):
                generation.run(300)
        assert generation.activity.met is not None, "all nodes have joined"
        joined = [node.joined_at for node in generation.members.nodes]
        row = {"rollcall_s": generation.activity.met - max(at for at in joined if at is not None)}
        if train_s:
            trained_s = moments["stopped"] - moments["steps"]
            row["requests_per_s"] = (requests["after"] - requests["before"]) / trained_s
            row["found_s"] = moments["told"] - moments["stopped"]
        return row


# ---- figures


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}
