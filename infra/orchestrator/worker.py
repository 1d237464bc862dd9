"""A worker of a process pool: this machine's in the background, or `python -m infra.orchestrator.worker POOL`.

`up` starts this machine's worker, which executes the runs of the pool that deployments name. `down` ends what runs. So
three steps follow each other: cancel the runs, which gives each flow time to end what it started; stop the worker; kill
what still carries the worker's mark.

In the foreground (`work`, also as `trainwright worker`), SIGTERM hands the flow runs over: they save a checkpoint, end,
and are given to a worker again, as if they had not begun. Prefect's own worker, which runs as its child, answers
SIGTERM by killing its flow runs, which then count as crashed. Without POOL, this process does the same for the flow run
that its environment names, as the first process of a pod: Prefect's own would give the run away without a checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import psutil

from data_contracts.errors import StorageUnavailable, UsageError
from infra import scratch
from infra.orchestrator import server
from infra.orchestrator.api import ANSWER_TIMEOUT_S, API_AUTH, asking, if_there, unreachable_is_unavailable
from infra.orchestrator.deployments import POOL, PROCESS
from infra.orchestrator.server import Service
from infra.processes.environment import FLOW_RUN
from infra.processes.processes import find_marked, kill_marked, marked_env, module_command, new_mark
from infra.stopping import STOP_FILE
from infra.telemetry import prefect_env

QUERY_S = 1
ONLINE_TIMEOUT_S = 180.0
STOP_GRACE_S = 10.0
# A cancelled flow run ends its gang and reports; after this time it is killed.
CANCEL_GRACE_S = 30.0
# A server that is restarted beside the worker answers again within this many of Prefect's retries.
_RETRIES = 5
# A checkpoint has 30 s (`Launch.grace_s`), and is committed after that. The unit's TimeoutStopSec is longer.
GRACE_S = 75.0
POLL_S = 0.2
# Between two starts of a worker that ended by itself: Prefect's does so when its server is away for minutes.
AGAIN_S = 5.0

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
            client.create_work_pool(WorkPoolCreate(name=name, type=PROCESS, base_job_template=template))
        except ObjectAlreadyExists:
            kind = client.read_work_pool(name).type
            if kind != PROCESS:
                raise UsageError(
                    f"The work pool {name} on this Prefect server is of type {kind}, not process.",
                    remedy="Rename that pool, or point PREFECT_API_URL at another server.",
                ) from None


def start_worker(url: str, pool: str = POOL) -> Service:
    """This machine's worker for the pool on the server at `url`, online; started if it does not run.

    Raises:
        StorageUnavailable: it ended while starting, or did not report to the server.
    """
    with server.locked_services():
        worker = server.running_service("worker")
        if worker is not None and (worker.url != url or not _knows_password(worker)):
            # Its server is no longer the one in use, or will refuse it from now on.
            log.warning("The worker is restarted for the Prefect server at %s.", url)
            cancel_runs_of(worker)
            worker.stop(STOP_GRACE_S)
            worker = None
        if worker is None:
            mark, before = new_mark(), _last_heartbeat(pool)

            def online(worker: Service) -> None:
                # The server has a heartbeat other than that from before the start. This compares no clocks.
                is_late = f"did not report to {worker.url}"
                worker.wait_until(lambda: _last_heartbeat(pool) != before, ONLINE_TIMEOUT_S, "The worker", is_late)

            env = {**server.service_environment(mark), "PREFECT_WORKER_QUERY_SECONDS": str(QUERY_S)}
            command = module_command("infra.orchestrator.worker", pool)
            worker = server.start_service("worker", command, mark=mark, env=env, url=url, wait=online)
        return worker


def stop_worker() -> list[str]:
    """Cancel the flow runs of our worker, stop it and all its descendants; returns what was stopped."""
    with server.locked_services():
        worker = server.read_service("worker")
        if worker is None:
            return []
        cancelled = [f"flow run {name}" for name in cancel_runs_of(worker)]
        stopped = worker.stop(STOP_GRACE_S)
        server.forget_service("worker")
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


def _last_heartbeat(pool: str) -> datetime | None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        workers = client.read_workers_for_work_pool(pool)
    return next((worker.last_heartbeat_time for worker in workers if worker.name == _worker_name()), None)


def runs_of(mark: str) -> set[UUID]:
    """Ids of the flow runs that have a live process below the worker with this mark."""
    ids = set()
    for pid in find_marked(mark):
        with contextlib.suppress(psutil.Error, ValueError, KeyError):
            ids.add(UUID(psutil.Process(pid).environ()[FLOW_RUN]))
    return ids


def cancel_runs_of(worker: Service) -> list[str]:
    """Cancel the worker's flow runs and wait until their processes have ended and their states are final; their names.

    If the server does not answer, nothing is cancelled and a warning is logged; the caller kills the processes.
    """
    ids = runs_of(worker.mark)
    if not ids:
        return []
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
    from prefect.states import Cancelling

    deadline = time.monotonic() + CANCEL_GRACE_S
    # The server that the worker uses, even if another is in use now; without retries, a dead server costs no minute.
    asked = temporary_settings({PREFECT_API_URL: worker.url, PREFECT_CLIENT_MAX_RETRIES: 0})
    try:
        with asked, get_client(sync_client=True, httpx_settings={"timeout": ANSWER_TIMEOUT_S}) as client:
            for run_id in ids:
                client.set_flow_run_state(run_id, Cancelling(message="Stopped by `trainwright down`."))
            pending = ids
            while (pending or runs_of(worker.mark)) and time.monotonic() < deadline:
                time.sleep(0.1)
                states = {run_id: client.read_flow_run(run_id).state for run_id in pending}
                pending = {run_id for run_id, state in states.items() if state is None or not state.is_final()}
            return sorted(client.read_flow_run(run_id).name for run_id in ids)
    except Exception as error:  # whatever the server answered: runs that it could not end are killed next
        log.warning("The worker's flow runs could not be cancelled and are killed instead: %s", error)
        return sorted(str(run_id) for run_id in ids)


def give_to_worker_again() -> None:
    """Let another worker take the flow run that this process executes; StorageUnavailable."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        give_again([context.flow_run.id])


def give_again(flow_runs: list[UUID]) -> None:
    """Let workers take flow runs again that are at work; the others stay as they are.

    A gang's nodes stay, too: their conductor starts others. Raises: StorageUnavailable.
    """
    from prefect.states import Scheduled

    with unreachable_is_unavailable(), asking(_RETRIES) as client:
        for number in flow_runs:
            current = if_there(functools.partial(client.read_flow_run, number))
            if current is None or current.state is None:  # a person deleted it meanwhile
                continue
            at_work = current.state.is_running() or current.state.is_pending()
            if at_work and "generation" not in current.parameters:
                message = "Its worker was stopped as planned."
                client.set_flow_run_state(number, Scheduled(name="AwaitingRetry", message=message), force=True)
                log.info("the flow run %s is given to a worker again", current.name)


def work(pool: str | None, options: Sequence[str] = ()) -> list[str]:
    """Execute the pool's flow runs until SIGTERM or SIGINT, then hand them over; ids of those that were handed over.

    Args:
        pool: None: only the flow run that this process's environment names; SystemExit with its exit code at its end.
        options: further options of `prefect worker start`.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    mark = new_mark()
    with scratch.make("worker", mark=mark) as folder:
        stop_file = folder.path / "stop"
        environ = marked_env(
            mark,
            {
                # Flow runs find this environment's programs (dvc, torchrun) even if the environment is not activated.
                "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]),
                STOP_FILE: str(stop_file),
                # The server calls a worker dead after three of these.
                "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
                **prefect_env(),
            },
        )
        worker = _start(pool, options, environ, folder.handles)
        try:
            while not stopped.wait(POLL_S):
                if worker.poll() is not None:
                    if pool is None:
                        raise SystemExit(worker.returncode)
                    log.warning("Prefect's worker ended with exit code %d and is started again.", worker.returncode)
                    stopped.wait(AGAIN_S)
                    worker = _start(pool, options, environ, folder.handles)
            # It takes no more flow runs, and does not end those that it has.
            worker.send_signal(signal.SIGSTOP)
            flow_runs = runs_of(mark)
            stop_file.touch()
            deadline = time.monotonic() + GRACE_S
            while set(find_marked(mark)) - {worker.pid} and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:
            kill_marked(mark)
            worker.wait()
    try:
        give_again(sorted(flow_runs))
    except StorageUnavailable as error:
        log.warning("Flow runs that did not end in time are left to the reaper: %s", error)
    return sorted(map(str, flow_runs))


def _start(
    pool: str | None, options: Sequence[str], environ: dict[str, str], handles: Sequence[int]
) -> subprocess.Popen[bytes]:
    worker = ["worker", "start", "--type", PROCESS, "--pool", str(pool), "--name", _worker_name(), *options]
    work = worker if pool is not None else ["flow-run", "execute"]
    # It has the server's password, so nothing in the folder where it is started may take the place of a module. If this
    # process is killed, Prefect's worker must not go on to take flow runs that nobody can hand over.
    command = module_command("infra.processes.tied_to_parent", "prefect", *work)
    return subprocess.Popen(command, env=environ, start_new_session=True, pass_fds=handles)


def main() -> None:
    """Work for the pool that the command line names; without one, execute a pod's flow run."""
    work(sys.argv[1] if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
