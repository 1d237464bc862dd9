"""The deployment that reports what a month cost: `cost-report/POOL`, on the second day of each month."""

from __future__ import annotations

from typing import Any

from infra.orchestrator.deployments import checkout_steps, find_deployment
from infra.orchestrator.reaper_deployments import make_periodic, parameter_schema
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

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        known: Any = find_deployment(client, f"cost-report/{pool}")
        if known is not None and known.pull_steps == checkout_steps(kind):
            return
        make_periodic(
            client,
            f"cost-report/{pool}",
            known,
            pool=pool,
            kind=kind,
            description="Reports what the last calendar month cost, and keeps its figures in the store.",
            entrypoint=COST_REPORT,
            every=MONTHLY,
            parameters={} if known is None else known.parameters,
            schema=parameter_schema(_PARAMETERS, []),
        )
