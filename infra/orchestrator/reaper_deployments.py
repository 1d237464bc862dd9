"""The deployments by which dead runs are found and resumed: `reap/POOL`, on a schedule, and `resume/POOL`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from infra.orchestrator.deployments import checkout_steps, find_deployment, kept_schedules
from infra.orchestrator.work_pools import find_pool

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

REAP, RESUME = "flows.reap.reap", "flows.retrain.resume"
# How often the reaper looks, unless its schedule was changed in Prefect.
EVERY = "*/3 * * * *"
_STORE = {"title": "store", "description": "store to look at; default: those used from the worker's machine"}
_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
_REAP_PARAMETERS = {
    "store": {**_STORE, **_TEXT, "position": 0},
    "pool": {"title": "pool", "description": "its workers resume", "type": "string", "default": "trainwright"},
}
_RESUME_PARAMETERS = {
    "run_id": {"title": "run_id", "description": "the run", "position": 0, "type": "string"},
    "store": {"title": "store", "description": "address of the store", **_TEXT, "position": 1},
}


def ensure_reaper(pool: str) -> None:
    """Make both deployments of a pool, or let them run this checkout's code; a pause and a changed schedule stay."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        ensure_resume_deployment(client, pool, kind)
        known = find_deployment(client, f"reap/{pool}")
        if known is None or known.pull_steps != checkout_steps(kind):
            _make(client, pool, kind, known)


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
        parameter_openapi_schema=parameter_schema(_RESUME_PARAMETERS, ["run_id"]),
        enforce_parameter_schema=True,
    )


def _make(client: SyncPrefectClient, pool: str, kind: str, known: Any) -> None:
    make_periodic(
        client,
        f"reap/{pool}",
        known,
        pool=pool,
        kind=kind,
        description="Finds runs whose process died without a report, and has them resumed (retry.crashed).",
        entrypoint=REAP,
        every=EVERY,
        parameters={"pool": pool} if known is None else known.parameters,
        schema=parameter_schema(_REAP_PARAMETERS, []),
    )


def make_periodic(
    client: SyncPrefectClient,
    title: str,
    known: Any,
    *,
    pool: str,
    kind: str,
    every: str,
    **what: Any,
) -> None:
    """Make the deployment `FLOW/NAME` that looks at something now and then, or change it: its schedule and pause stay.

    Args:
        known: the deployment as it is; None: it is new.
        every: cron line of a new deployment, in UTC.
        what: `description`, `entrypoint`, `parameters` and `schema`.
    """
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule

    flow, _, name = title.partition("/")
    if known is not None:
        schedules = kept_schedules(known)
    else:
        schedules = [DeploymentScheduleCreate(schedule=CronSchedule(cron=every, timezone="UTC"), active=True)]
    client.create_deployment(
        client.create_flow_from_name(flow),
        name,
        description=what["description"],
        work_pool_name=pool,
        entrypoint=what["entrypoint"],
        pull_steps=checkout_steps(kind),
        parameters=what["parameters"],
        schedules=schedules,
        paused=None if known is None else known.paused,
        # A worker that was away for a night must not begin with a hundred looks.
        concurrency_limit=1,
        concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        tags=["trainwright"],
        parameter_openapi_schema=what["schema"],
        enforce_parameter_schema=True,
    )


def parameter_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """A flow's parameters as JSON Schema."""
    return {"title": "Parameters", "type": "object", "properties": properties, "required": required}
