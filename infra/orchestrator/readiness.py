"""What should run by a Prefect server and does not: compares schedules and due flow runs with pools and workers."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from infra.orchestrator import api
from infra.orchestrator.admission import asking
from infra.orchestrator.api import Server
from infra.orchestrator.password import read as read_password
from infra.orchestrator.server.services import Service
from infra.orchestrator.server.services import read as read_service
from infra.orchestrator.work_pools import Obstacle, find_pool, obstacle_of, worker_command

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# A pool that works may be busy; a flow run that has waited for so long needs a person.
LATE_S = 900.0
# The most that a Prefect server returns in one answer (PREFECT_API_DEFAULT_LIMIT).
_PAGE = 200


def obstacles_here(server: Server | None) -> list[tuple[Literal["worker", "schedules"], Obstacle]]:
    """Why this machine's worker, or what the server should start, does not run; [] if all does. Starts nothing.

    Args:
        server: the server that commands use here; None: no server answers.
    """
    worker = _worker_obstacle(read_service("worker"), server)
    found: list[tuple[Literal["worker", "schedules"], Obstacle]] = [] if worker is None else [("worker", worker)]
    if server is None:
        return found
    if server.ours:
        api.connect_to(server.url, read_password())
    try:
        with asking() as client:
            return [*found, *(("schedules", obstacle) for obstacle in _obstacles(client))]
    except Exception as error:
        away = api.unreachable(error)
        if away is None:
            raise
        return [*found, ("schedules", Obstacle("server_away", away.message, away.remedy))]


def _obstacles(client: SyncPrefectClient) -> list[Obstacle]:
    """Why deployments of ours do not start runs as they should, one for each pool; [] if all do.

    Deployments of other programs on the server, and deployments that a person paused, are not looked at.
    """
    ours = _deployments(client)
    scheduled = [one for one in ours if not one.paused and any(schedule.active for schedule in one.schedules)]
    now = datetime.now(UTC)
    due, late = (_waiting(client, ours, before) for before in (now, now - timedelta(seconds=LATE_S)))
    schedules, runs = Counter(one.work_pool_name for one in scheduled), Counter(due)
    found = []
    for name in sorted({*schedules, *runs} - {None}):
        pool = find_pool(client, name)
        if (obstacle := obstacle_of(client, pool)) is not None:
            waits = f" Schedules that it should carry out: {schedules[name]}; flow runs that are due: {runs[name]}."
            found.append(Obstacle(obstacle.name, obstacle.sentence + waits, obstacle.remedy))
        elif name in late:
            sentence = f"Flow runs that have waited for a worker of the work pool {name} for {LATE_S / 60:.0f} minutes"
            remedy = f"Start another worker, or one with a higher --limit: `{worker_command(pool)}`."
            found.append(Obstacle("late_runs", f"{sentence}: {late.count(name)}.", remedy))
    homeless = [one.name for one in scheduled if one.work_pool_name is None]
    if homeless:
        sentence = f"Deployments that have a schedule and no work pool, so that nothing runs: {', '.join(homeless)}."
        found.append(Obstacle("no_pool", sentence, "Deploy them again: `trainwright deploy SPEC --pool POOL`."))
    return found


def _worker_obstacle(worker: Service | None, server: Server | None) -> Obstacle | None:
    """Why this machine's worker does not work for the server; None if it does, or none was started."""
    if worker is None:
        return None
    if not worker.is_running():
        sentence = f"The worker of this machine (pid {worker.pid}) has died."
        return Obstacle("worker_died", sentence, f"Start it again: `trainwright up`. Its log is {worker.log}.")
    if server is not None and worker.url != server.url:
        sentence = f"The worker of this machine (pid {worker.pid}) works for another Prefect server, {worker.url}."
        return Obstacle("worker_elsewhere", sentence, "Let it work for this server: `trainwright up`.")
    return None


def _deployments(client: SyncPrefectClient) -> list[Any]:
    """All deployments that run flows of ours."""
    found: list[Any] = []
    while page := client.read_deployments(limit=_PAGE, offset=len(found)):
        found += page
    return [one for one in found if (one.entrypoint or "").startswith("flows.")]


def _waiting(client: SyncPrefectClient, deployments: list[Any], before: datetime) -> list[str]:
    """The pool of each flow run of these deployments that was to begin before a time, and waits for a worker."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterDeploymentId,
        FlowRunFilterNextScheduledStartTime,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    pools = {one.id: one.work_pool_name for one in deployments}
    due = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=list(pools)),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=before),
    )
    return [pools[run.deployment_id] for run in client.read_flow_runs(flow_run_filter=due, limit=_PAGE)]
