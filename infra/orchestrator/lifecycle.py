"""`trainwright up` and `down`: start and stop all of Prefect on this machine, and say what of it does not run.

`up` lets a person's `prefect` command find our server, through `prefect.toml` in the folder with `prefect.yaml`.
Prefect reads that file from the folder in which it is called; the environment takes precedence. The file names a
profiles file in the state folder, which holds the server's address and password and which only its owner can read. A
folder that may be shared or published never holds the password. So after `trainwright up`, `prefect deploy --all` works
there in any shell without further settings, and the person's own profiles and other uses of Prefect stay as they are. A
`prefect.toml` that the person wrote is left alone. In other folders they use `export PREFECT_PROFILES_PATH=…`, as `up`
prints it.

`obstacles_here` compares schedules and due flow runs with pools and workers.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from infra.files import replace_private, replace_text
from infra.orchestrator import api
from infra.orchestrator.api import ANSWER_TIMEOUT_S, API_AUTH, API_URL, MOST_ITEMS, Server, asking, every_page
from infra.orchestrator.deployments import (
    POOL,
    Obstacle,
    ensure_system,
    find_pool,
    obstacle_of,
    worker_command,
)
from infra.orchestrator.server import Service, ensure_server, read_password, read_service, server_status, stop_server
from infra.orchestrator.worker import ensure_pool, start_worker, stop_worker
from infra.processes.processes import CODE_ROOT
from infra.settings import state_folder
from infra.written_files import record_written

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


_HEADER = "# Written by `trainwright up`, taken away by `trainwright down`: `prefect` here talks to its server."
# A pool that works may be busy; a flow run that has waited for so long needs a person.
LATE_S = 900.0

log = logging.getLogger(__name__)


def up() -> Server:
    """Start the server, the pool, its reaper and a worker, unless they run already.

    `prefect` in this folder then uses the server. Afterwards `prefect deploy --all` works.

    Raises what `ensure_server`, `ensure_pool` and `start_worker` raise.
    """
    server = ensure_server()
    ensure_pool()
    ensure_system(POOL)
    start_worker(server.url)
    if server.ours:
        link_project(server.url, read_password())
    else:
        # The person has named another server since, which our prefect.toml would override.
        unlink_project()
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
    unlink_project()
    return stopped if url is None else [*stopped, f"Prefect server at {url}"]


def profiles() -> Path:
    """The profiles file through which `prefect` finds our server and its password, in any folder."""
    return state_folder() / "profiles.toml"


def link_project(url: str, password: str | None) -> Path | None:
    """Point `prefect` at our server, in the current folder, else in this checkout; the file, or None."""
    settings = {API_URL: url} | ({API_AUTH: password} if password else {})
    # A JSON string is a TOML string, unless it has escapes that TOML lacks.
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    replace_private(profiles(), "\n".join([_HEADER, 'active = "trainwright"', "[profiles.trainwright]", *lines, ""]))
    folder = next((place for place in (Path.cwd(), CODE_ROOT) if (place / "prefect.yaml").is_file()), None)
    if folder is None:
        return None
    path = folder / "prefect.toml"
    advice = f"Before `prefect deploy`, say: export PREFECT_PROFILES_PATH={shlex.quote(str(profiles()))}"
    if path.exists() and not _is_ours(path):
        log.warning("%s is not Trainwright's and is left as it is. %s", path, advice)
        return None
    try:
        replace_text(path, f"{_HEADER}\nprofiles_path = {json.dumps(str(profiles()))}\n")
        record_written(path)
    except OSError as error:
        log.warning("%s cannot be written (%s). %s", path, error.strerror, advice)
        return None
    _note().write_text("".join(f"{known}\n" for known in sorted({*_linked(), path})))
    return path


def unlink_project() -> None:
    """Remove the files that `link` wrote, unless someone has changed them since."""
    profiles().unlink(missing_ok=True)
    for path in _linked():
        if _is_ours(path):
            path.unlink(missing_ok=True)
    _note().unlink(missing_ok=True)


def _linked() -> list[Path]:
    try:
        return [Path(line) for line in _note().read_text().splitlines()]
    except FileNotFoundError:
        return []


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text().startswith(_HEADER)
    except (OSError, UnicodeDecodeError):
        return False


def _note() -> Path:
    return state_folder() / "linked"


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
        with asking(timeout_s=ANSWER_TIMEOUT_S) as client:
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
    deployments = every_page(lambda offset: client.read_deployments(limit=MOST_ITEMS, offset=offset))
    ours: list[Any] = [one for one in deployments if (one.entrypoint or "").startswith("flows.")]
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
    return [pools[run.deployment_id] for run in client.read_flow_runs(flow_run_filter=due, limit=MOST_ITEMS)]
