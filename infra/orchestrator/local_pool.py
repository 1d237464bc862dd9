"""The work pool that deployments name, and this machine's worker, which executes its runs.

`down` ends what runs. So three steps follow each other: cancel the runs, which gives each flow time to end what it
started; stop the worker; kill what still carries the worker's mark. SIGTERM alone hands the runs over
(`infra.orchestrator.worker`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from datetime import datetime

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator.flow_runs import worker_flow_runs
from infra.orchestrator.server import services
from infra.orchestrator.server.services import Service
from infra.orchestrator.variables import API_AUTH
from infra.orchestrator.work_pools import POOL
from infra.processes.processes import module_command, new_mark

POLL_S = 1
ONLINE_TIMEOUT_S = 60.0
STOP_GRACE_S = 10.0

log = logging.getLogger("trainwright")


def ensure_pool(name: str = POOL) -> None:
    """Create the process pool if it does not exist; UsageError if a pool of that name has another type.

    The server must be known (`ensure_server`), as for `start_worker`.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
        except ObjectAlreadyExists:
            kind = client.read_work_pool(name).type
            if kind != "process":
                raise UsageError(
                    f"The work pool {name} on this Prefect server is of type {kind}, not process.",
                    remedy="Rename that pool, or point PREFECT_API_URL at another server.",
                ) from None


def start_worker(url: str, pool: str = POOL) -> Service:
    """This machine's worker for the pool on the server at `url`, online; started if it does not run.

    Raises:
        StorageUnavailable: it ended while starting, or did not report to the server.
    """
    with services.locked():
        worker = services.running("worker")
        if worker is not None and (worker.url != url or not _knows_password(worker)):
            # Its server is no longer the one in use, or will refuse it from now on.
            log.warning("The worker is restarted for the Prefect server at %s.", url)
            worker_flow_runs.cancel_runs_of(worker)
            worker.stop(STOP_GRACE_S)
            worker = None
        if worker is None:
            mark, before = new_mark(), _last_heartbeat(pool)

            def online(worker: Service) -> None:
                _wait_until_online(worker, pool, before)

            env = _environment(mark)
            command = module_command("infra.orchestrator.worker", pool)
            worker = services.start("worker", command, mark=mark, env=env, url=url, wait=online)
        return worker


def stop_worker() -> list[str]:
    """Cancel the flow runs of our worker, stop it and all its descendants; returns what was stopped."""
    with services.locked():
        worker = services.read("worker")
        if worker is None:
            return []
        cancelled = [f"flow run {name}" for name in worker_flow_runs.cancel_runs_of(worker)]
        stopped = worker.stop(STOP_GRACE_S)
        services.forget("worker")
        _forget_worker()
        return [*cancelled, "worker"] if stopped else []


def _forget_worker() -> None:
    """Remove our worker from the server, which would call it online for another minute."""
    from prefect.client.orchestration import get_client

    name = {"work_pool_name": POOL, "name": _worker_name()}
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # the server may be gone already
        client.request("DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=name)


def _knows_password(worker: Service) -> bool:
    wanted = os.environ.get(API_AUTH)
    return not wanted or worker.variable(API_AUTH) == wanted


def _worker_name() -> str:
    return platform.node() or "local"


def _environment(mark: str) -> dict[str, str]:
    return {**services.environment(mark), "PREFECT_WORKER_QUERY_SECONDS": str(POLL_S)}


def _last_heartbeat(pool: str) -> datetime | None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(pool)
    return next((worker.last_heartbeat_time for worker in workers if worker.name == _worker_name()), None)


def _wait_until_online(worker: Service, pool: str, before: datetime | None) -> None:
    """Wait until the server has a heartbeat other than `before`, from before the start. Compares no clocks."""
    deadline = time.monotonic() + ONLINE_TIMEOUT_S
    while _last_heartbeat(pool) == before:
        if not worker.is_running():
            raise StorageUnavailable(
                f"The worker ended while starting: {worker.last_words() or 'it said nothing'}",
                remedy=f"Its log is {worker.log}.",
            )
        if time.monotonic() > deadline:
            raise StorageUnavailable(
                f"The worker (pid {worker.pid}) did not report to {worker.url} within {ONLINE_TIMEOUT_S:.0f} s.",
                remedy=f"Its log is {worker.log}.",
            )
        time.sleep(0.1)
