"""The deployment that makes the page of the day: `day-page/POOL`, each hour."""

from __future__ import annotations

from typing import Any

from infra.orchestrator.deployments import checkout_steps, find_deployment
from infra.orchestrator.reaper_deployments import make_periodic, parameter_schema
from infra.orchestrator.work_pools import find_pool

DAY_PAGE = "flows.day_page.day_page"
# Not on the hour, when nightly runs begin.
HOURLY = "7 * * * *"
_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
_STORE = {"title": "store", "description": "store to look at; default: those used here", **_TEXT, "position": 0}
_FILE = "file of objectives on the worker's machine; default: those that Trainwright ships"
_PARAMETERS = {
    "store": _STORE,
    "objectives": {"title": "objectives", "description": _FILE, **_TEXT, "position": 1},
}


def ensure_day_page(pool: str) -> None:
    """Make the deployment of a pool, or let it run this checkout's code; a pause and a changed schedule stay."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        known: Any = find_deployment(client, f"day-page/{pool}")
        if known is not None and known.pull_steps == checkout_steps(kind):
            return
        make_periodic(
            client,
            f"day-page/{pool}",
            known,
            pool=pool,
            kind=kind,
            description="Writes the page of the day and what needs a person, each hour.",
            entrypoint=DAY_PAGE,
            every=HOURLY,
            parameters={} if known is None else known.parameters,
            schema=parameter_schema(_PARAMETERS, []),
        )
