"""The deployment that reports what a month cost: `cost-report/POOL`, on the second day of each month."""

from __future__ import annotations

from typing import Any

from infra.orchestrator.deployments import checkout_steps, find_deployment, kept_schedules
from infra.orchestrator.work_pools import find_pool

COST_REPORT = "flows.cost_report.cost_report"
# The second day, so that runs of the last night have ended.
MONTHLY = "0 6 2 * *"
_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
_PARAMETERS = {
    "store": {"title": "store", "description": "store to count; default: those used here", **_TEXT, "position": 0},
    "month": {"title": "month", "description": "such as 2026-10; default: the last", **_TEXT, "position": 1},
}


def ensure_cost_report(pool: str) -> None:
    """Make the deployment of a pool, or let it run this checkout's code; a pause and a changed schedule stay."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        known: Any = find_deployment(client, f"cost-report/{pool}")
        if known is not None and known.pull_steps == checkout_steps(kind):
            return
        monthly = DeploymentScheduleCreate(schedule=CronSchedule(cron=MONTHLY, timezone="UTC"), active=True)
        client.create_deployment(
            client.create_flow_from_name("cost-report"),
            pool,
            description="Reports what the last calendar month cost, and keeps its figures in the store.",
            work_pool_name=pool,
            entrypoint=COST_REPORT,
            pull_steps=checkout_steps(kind),
            parameters={} if known is None else known.parameters,
            schedules=[monthly] if known is None else kept_schedules(known),
            paused=None if known is None else known.paused,
            tags=["trainwright"],
            parameter_openapi_schema={
                "title": "Parameters", "type": "object", "properties": _PARAMETERS, "required": [],
            },
            enforce_parameter_schema=True,
        )  # fmt: skip
