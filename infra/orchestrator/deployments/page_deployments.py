"""The deployments of a pool that write pages: `day-page/POOL`, and `cost-report/POOL` about the last month."""

from __future__ import annotations

from infra.orchestrator.deployments.periodic_deployments import OPTIONAL_TEXT, Periodic, ensure_for_pool
from infra.orchestrator.work_pools import find_pool

DAY_PAGE = Periodic(
    flow="day-page",
    entrypoint="flows.day_page.day_page",
    description="Writes the page of the day and what needs a person, each hour.",
    every="7 * * * *",  # not on the hour, when nightly runs begin
    properties={
        "store": {
            "title": "store",
            "description": "store to look at; default: those used here",
            **OPTIONAL_TEXT,
            "position": 0,
        },
        "objectives": {
            "title": "objectives",
            "description": "file of objectives on the worker's machine; default: those that Trainwright ships",
            **OPTIONAL_TEXT,
            "position": 1,
        },
    },
)
COST_REPORT = Periodic(
    flow="cost-report",
    entrypoint="flows.cost_report.cost_report",
    description="Reports what the last calendar month cost, and keeps its figures in the store.",
    every="0 6 2 * *",  # the second day, so that runs of the last night have ended
    properties={
        "store": {
            "title": "store",
            "description": "store to count; default: those used here",
            **OPTIONAL_TEXT,
            "position": 0,
        },
        "month": {
            "title": "month",
            "description": "such as 2026-10; default: the last",
            **OPTIONAL_TEXT,
            "position": 1,
        },
    },
)


def ensure_pages(pool: str) -> None:
    """Make both deployments of a pool, or let them run this checkout's code; a pause and a changed schedule stay."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        kind = find_pool(client, pool).type
        for wanted in (DAY_PAGE, COST_REPORT):
            ensure_for_pool(client, pool, kind, wanted)
