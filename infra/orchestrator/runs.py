"""Flow runs that this machine's worker carries out, found by their processes and not by what a server remembers."""

from __future__ import annotations

import contextlib
import logging
import time
from uuid import UUID

import psutil

from infra.launch.processes import find_marked
from infra.orchestrator.api import REACH_TIMEOUT_S
from infra.orchestrator.services import Service

# A flow run that is cancelled ends its gang and reports; longer than this, it is killed.
CANCEL_GRACE_S = 30.0
_FLOW_RUN = "PREFECT__FLOW_RUN_ID"

log = logging.getLogger(__name__)


def runs_of(worker: Service) -> set[UUID]:
    """Ids of the flow runs that have a live process below the worker."""
    found = set()
    for pid in find_marked(worker.mark):
        with contextlib.suppress(psutil.Error, ValueError, KeyError):
            found.add(UUID(psutil.Process(pid).environ()[_FLOW_RUN]))
    return found


def cancel_runs_of(worker: Service) -> list[str]:
    """Cancel the worker's flow runs and wait until their processes and their states say so; their names.

    Where the server does not answer nothing is cancelled (the caller kills the processes), with a warning.
    """
    ids = runs_of(worker)
    if not ids:
        return []
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
    from prefect.states import Cancelling

    deadline = time.monotonic() + CANCEL_GRACE_S
    # The server that the worker works for, whichever is in use now; a dead one is not asked for a minute.
    asked = temporary_settings({PREFECT_API_URL: worker.url, PREFECT_CLIENT_MAX_RETRIES: 0})
    try:
        with asked, get_client(sync_client=True, httpx_settings={"timeout": REACH_TIMEOUT_S}) as client:
            for run_id in ids:
                client.set_flow_run_state(run_id, Cancelling(message="Stopped by `trainwright down`."))
            pending = ids
            while (pending or runs_of(worker)) and time.monotonic() < deadline:
                time.sleep(0.1)
                states = {run_id: client.read_flow_run(run_id).state for run_id in pending}
                pending = {run_id for run_id, state in states.items() if state is None or not state.is_final()}
            return sorted(client.read_flow_run(run_id).name for run_id in ids)
    except Exception as error:  # whatever the server's answer: what it could not end is killed next
        log.warning("The flow runs of the worker could not be cancelled and are killed: %s", error)
        return sorted(str(run_id) for run_id in ids)
