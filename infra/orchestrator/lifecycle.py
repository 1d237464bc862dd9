"""`trainwright up` and `trainwright down`: start and stop all of Prefect that runs on this machine."""

from __future__ import annotations

from infra.orchestrator import api, project
from infra.orchestrator.api import Server
from infra.orchestrator.deployments.page_deployments import ensure_pages
from infra.orchestrator.deployments.reaper_deployments import ensure_reaper
from infra.orchestrator.local_pool import POOL, ensure_pool, start_worker, stop_worker
from infra.orchestrator.password import read as read_password
from infra.orchestrator.server.server import ensure_server, server_status, stop_server


def up() -> Server:
    """Start the server, the pool, its reaper and a worker, unless they run already.

    `prefect` in this folder then uses the server. Afterwards `prefect deploy --all` works.

    Raises what `ensure_server`, `ensure_pool` and `start_worker` raise.
    """
    server = ensure_server()
    ensure_pool()
    ensure_reaper(POOL)
    ensure_pages(POOL)
    start_worker(server.url)
    if server.ours:
        project.link(server.url, read_password())
    else:
        # The person has named another server since, which our prefect.toml would override.
        project.unlink()
    return server


def down() -> list[str]:
    """Cancel the worker's flow runs and stop worker, server and their descendants; returns what stopped, in order.

    A server that the person runs themselves, and flow runs that they started in a terminal, are left alone.
    """
    server = server_status()
    if server is not None and server.ours:
        api.connect_to(server.url, read_password())
    stopped = stop_worker()
    url = stop_server()
    project.unlink()
    return stopped if url is None else [*stopped, f"Prefect server at {url}"]
