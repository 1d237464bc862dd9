"""Flow runs that this machine's worker executes, found by their processes, not by the server's records."""

from __future__ import annotations

import contextlib
import logging
import time
from uuid import UUID

import psutil

from infra.orchestrator.api import REACH_TIMEOUT_S
from infra.orchestrator.server.services import Service
from infra.processes.environment import FLOW_RUN
from infra.processes.processes import find_marked

# A cancelled flow run ends its gang and reports; after this time it is killed.
CANCEL_GRACE_S = 30.0

log = logging.getLogger("trainwright")


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
        with asked, get_client(sync_client=True, httpx_settings={"timeout": REACH_TIMEOUT_S}) as client:
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
