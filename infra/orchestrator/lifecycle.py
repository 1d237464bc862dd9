"""`trainwright up` and `trainwright down`: all of Prefect that runs on this machine, started and stopped together."""

from __future__ import annotations

from infra.orchestrator import api, project
from infra.orchestrator.api import Server
from infra.orchestrator.pools import ensure_pool, start_worker, stop_worker
from infra.orchestrator.server import ensure_server, server_status, stop_server


def up() -> Server:
    """The server, the pool and a worker, each started if it is not there; `prefect` in this folder talks to the server.

    Afterwards `prefect deploy --all` works. Raises what `ensure_server`, `ensure_pool` and `start_worker` raise.
    """
    server = ensure_server()
    ensure_pool()
    start_worker(server.url)
    if server.ours:
        project.link(server.url)
    else:
        # They named another server since; ours must not come before it.
        project.unlink()
    return server


def down() -> list[str]:
    """Cancel the worker's flow runs, stop worker and server and all they had started; what was stopped, in order.

    A server that the person runs themselves, and flow runs that they started in a terminal, are left alone.
    """
    server = server_status()
    if server is not None and server.ours:
        api.use(server.url)
    stopped = stop_worker()
    url = stop_server()
    project.unlink()
    return stopped if url is None else [*stopped, f"Prefect server at {url}"]
