"""Flow runs that a worker took and never began, because it died in between: they are given to the workers again.

Prefect leaves such a flow run `Pending` for ever: no worker takes it, and no run was opened that a reaper could find.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

# Longer than an image takes to be fetched. If one takes longer, two processes are started for one run, and the second
# attaches to the first.
PENDING_S = 900.0
_FLOWS = ("retrain", "resume")

log = logging.getLogger("trainwright")


def start_pending_again(pending_s: float = PENDING_S) -> list[str]:
    """Let workers take flow runs again that have been pending for so long; what was done, in sentences.

    Raises: StorageUnavailable.
    """
    try:
        with asking(retries=2) as client:
            before = datetime.now(UTC) - timedelta(seconds=pending_s)
            return [_start_again(client, one) for one in _pending(client) if _is_stuck(client, one, before)]
    except Exception as error:
        away = unreachable(error)
        if away is None:
            raise
        raise away from error


def _pending(client: SyncPrefectClient) -> list[FlowRun]:
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    waits = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING]))
    ours = FlowFilter(name=FlowFilterName(any_=list(_FLOWS)))
    return client.read_flow_runs(flow_filter=ours, flow_run_filter=FlowRunFilter(state=waits))


def _is_stuck(client: SyncPrefectClient, seen: FlowRun, before: datetime) -> bool:
    """Whether a flow run of a deployment is still in the state that it was seen in, and has been since `before`."""
    if seen.state is None or seen.deployment_id is None or seen.state.timestamp > before:
        return False
    current = client.read_flow_run(seen.id).state  # somebody may have cancelled it since the list was made
    return current is not None and current.id == seen.state.id


def _start_again(client: SyncPrefectClient, flow_run: FlowRun) -> str:
    from prefect.states import Scheduled

    message = "The worker that took it never began it."
    client.set_flow_run_state(flow_run.id, Scheduled(name="AwaitingRetry", message=message), force=True)
    said = f"the flow run {flow_run.name} was pending, and is given to a worker again"
    log.info("%s", said)
    return said
