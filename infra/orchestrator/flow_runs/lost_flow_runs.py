"""Flow runs whose process died where no store says so: they are given to the workers again, or ended.

A worker that dies leaves its flow runs `Pending` or `Running` for ever, and one that lives says `Crashed` of a process
that died before it opened a run. No worker takes such a flow run again, and a reaper of stores finds no run, or one
whose verdict Prefect does not know. Executed again, it opens the run by its key, or reports its verdict. One that a
command carried out itself, or that only looks at something, is ended. What is `Cancelling`, Prefect's server ends by
itself after 300 s.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from data_contracts.errors import Crashed as CrashedError
from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.deployments.page_deployments import COST_REPORT, DAY_PAGE
from infra.orchestrator.deployments.reaper_deployments import REAPER
from infra.orchestrator.deployments.sensor_deployments import SENSOR
from infra.orchestrator.events.run_events import announce_unopened
from infra.orchestrator.flow_runs.resuming import end_dead, run_ids_of

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

# So many of Prefect's heartbeats that did not come mean that a process is dead: with the default of 180 s, longer than
# an image takes to be fetched. If it lives nevertheless, the second process attaches to the first.
MISSED_HEARTBEATS = 5
# A flow run is given back so often; what kills its process each time would kill the next one, too.
MOST_STARTS = 5
# An older crash is left to a person, as what an earlier version left.
CRASHED_S = 3 * 86400.0
_RUNS = ("retrain", "resume")
_LOOKS = (REAPER.flow, DAY_PAGE.flow, COST_REPORT.flow, SENSOR.flow)
_MESSAGE = "Its process died."

log = logging.getLogger("trainwright")


def start_lost_again(silent_s: float | None = None) -> list[str]:
    """Let workers take flow runs again whose process is lost, or end them; what was done, in sentences.

    Raises: StorageUnavailable.

    Args:
        silent_s: how long a process must have been silent; default: `MISSED_HEARTBEATS` of Prefect's heartbeats.
    """
    from prefect.settings import get_current_settings

    every_s = get_current_settings().flows.heartbeat_frequency
    if silent_s is None:
        silent_s = MISSED_HEARTBEATS * (every_s or 180)
    try:
        with asking(retries=2) as client:
            return [
                answer(client, one)
                for flows, answer in ((_RUNS, _answer), (_LOOKS, _end))
                for one in _unended(client, flows)
                if _is_lost(client, one, silent_s, beats=every_s is not None) and _is_as_seen(client, one)
            ]
    except Exception as error:
        away = unreachable(error)
        if away is None:
            raise
        raise away from error


def _unended(client: SyncPrefectClient, flows: Collection[str]) -> Iterable[FlowRun]:
    """The flow runs of some flows that no process may be carrying out."""
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort

    kinds = [StateType.PENDING, StateType.RUNNING, StateType.CRASHED]
    ours = FlowFilter(name=FlowFilterName(any_=list(flows)))
    states = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=kinds)))
    newest = FlowRunSort.EXPECTED_START_TIME_DESC
    found = client.read_flow_runs(flow_filter=ours, flow_run_filter=states, sort=newest)
    # Nobody starts a look again, nor what a command carried out itself, and what that opened is its store's matter.
    return (
        one
        for one in found
        if one.state is not None
        and ((flows is _RUNS and one.deployment_id is not None) or not (one.state.is_crashed() or run_ids_of(one)))
    )


def _is_lost(client: SyncPrefectClient, flow_run: FlowRun, silent_s: float, *, beats: bool) -> bool:
    """Whether a flow run's process is lost.

    Args:
        beats: whether processes of flow runs send heartbeats.
    """
    assert flow_run.state is not None
    now, since = datetime.now(UTC), flow_run.state.timestamp
    if flow_run.state.is_crashed():  # one that had opened a run is its store's matter
        recent = since > now - timedelta(seconds=CRASHED_S)
        return recent and not run_ids_of(flow_run) and not (flow_run.state.message or "").startswith(_MESSAGE)
    before = now - timedelta(seconds=silent_s)
    if flow_run.state.is_pending() or since > before:
        return since <= before
    return beats and not _has_beaten(client, flow_run, before)


def _has_beaten(client: SyncPrefectClient, flow_run: FlowRun, since: datetime) -> bool:
    """Whether the server has had a heartbeat of a flow run's process since a time."""
    wanted = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{flow_run.id}"]},
        # The clock of its machine may be ahead.
        "occurred": {"since": since.isoformat(), "until": (since + timedelta(days=7)).isoformat()},
    }
    return bool(client.request("POST", "/events/filter", json={"filter": wanted, "limit": 1}).json()["events"])


def _is_as_seen(client: SyncPrefectClient, seen: FlowRun) -> bool:
    """Whether a flow run is still in the state that it was seen in: somebody may have cancelled it since."""
    current = client.read_flow_run(seen.id).state
    return current is not None and seen.state is not None and current.id == seen.state.id


def _answer(client: SyncPrefectClient, flow_run: FlowRun) -> str:
    """Have a lost flow run executed again if it has a deployment, else end it; what was done."""
    return _end(client, flow_run) if flow_run.deployment_id is None else _start_again(client, flow_run)


def _end(client: SyncPrefectClient, flow_run: FlowRun) -> str:
    assert flow_run.state is not None
    end_dead(client, flow_run.id, _MESSAGE)
    said = f"the flow run {flow_run.name} was {flow_run.state.type.value.lower()} without a process, and is ended"
    log.info("%s", said)
    return said


def _start_again(client: SyncPrefectClient, flow_run: FlowRun) -> str:
    from prefect.states import Crashed, Scheduled

    assert flow_run.state is not None
    starts = sum((state.message or "") == _MESSAGE for state in client.read_flow_run_states(flow_run.id))
    was = flow_run.state.type.value.lower()
    if starts >= MOST_STARTS:
        error = CrashedError(f"{_MESSAGE} The flow run {flow_run.name} was given to workers {starts} times before.")
        client.set_flow_run_state(flow_run.id, Crashed(message=error.message), force=True)
        if flow_run.deployment_id is not None:
            announce_unopened(client.read_deployment(flow_run.deployment_id).name, str(flow_run.id), error)
        return error.message
    client.set_flow_run_state(flow_run.id, Scheduled(name="AwaitingRetry", message=_MESSAGE), force=True)
    said = f"the flow run {flow_run.name} was {was} without a process, and is given to a worker again"
    log.info("%s", said)
    return said
