"""Flow runs that this machine's worker carries out, found by their processes and not by what a server remembers."""

from __future__ import annotations

import contextlib
import logging
import time
from uuid import UUID

import psutil

from infra.launch.processes import find_marked
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
    from prefect.states import Cancelling

    deadline = time.monotonic() + CANCEL_GRACE_S
    try:
        with get_client(sync_client=True) as client:
            for run_id in ids:
                client.set_flow_run_state(run_id, Cancelling(message="trainwright down"))
            pending = set(ids)
            while (pending or runs_of(worker)) and time.monotonic() < deadline:
                pending = {run_id for run_id in pending if not _is_final(client.read_flow_run(run_id).state)}
                time.sleep(0.1)
            return sorted(client.read_flow_run(run_id).name for run_id in ids)
    except Exception as error:  # whatever the server's answer: what it could not end is killed next
        log.warning("The flow runs of the worker could not be cancelled and are killed: %s", error)
        return sorted(str(run_id) for run_id in ids)


def _is_final(state: object) -> bool:
    return bool(getattr(state, "is_final", lambda: True)())
