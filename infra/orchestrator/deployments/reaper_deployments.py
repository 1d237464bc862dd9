"""The deployments by which dead runs are found and resumed: `reap/POOL`, on a schedule, and `resume/POOL`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from infra.orchestrator.deployments.deployments import checkout_steps, find_deployment
from infra.orchestrator.deployments.periodic_deployments import (
    OPTIONAL_TEXT,
    Periodic,
    ensure_for_pool,
    parameter_schema,
)
from infra.orchestrator.work_pools import find_pool

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

RESUME = "flows.retrain.resume"
REAPER = Periodic(
    flow="reap",
    entrypoint="flows.reap.reap",
    description="Finds runs whose process died without a report, and has them resumed (retry.crashed).",
    every="*/3 * * * *",
    properties={
        "store": {
            "title": "store",
            "description": "store to look at; default: those used from the worker's machine",
            **OPTIONAL_TEXT,
            "position": 0,
        },
        "pool": {"title": "pool", "description": "its workers resume", "type": "string", "default": "trainwright"},
    },
)
_RESUME_PARAMETERS = {
    "run_id": {"title": "run_id", "description": "the run", "position": 0, "type": "string"},
    "store": {"title": "store", "description": "address of the store", **OPTIONAL_TEXT, "position": 1},
}


def ensure_reaper(pool: str) -> None:
    """Make both deployments of a pool, or let them run this checkout's code; a pause and a changed schedule stay."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        ensure_resume_deployment(client, pool, kind)
        ensure_for_pool(client, pool, kind, REAPER, {"pool": pool})


def ensure_resume_deployment(client: SyncPrefectClient, pool: str, kind: str) -> UUID:
    """The id of the pool's deployment that resumes runs, made if it does not exist."""
    known: Any = find_deployment(client, f"resume/{pool}")
    if known is not None and known.pull_steps == checkout_steps(kind):
        return known.id
    return client.create_deployment(
        client.create_flow_from_name("resume"),
        pool,
        description="Resumes a run whose process died. Started by the reaper, or from here with a run's id.",
        work_pool_name=pool,
        entrypoint=RESUME,
        pull_steps=checkout_steps(kind),
        tags=["trainwright"],
        parameter_openapi_schema=parameter_schema(_RESUME_PARAMETERS, ("run_id",)),
        enforce_parameter_schema=True,
    )
