"""Flow runs whose worker is stopped as planned: they are given to a worker again, as if they had not begun."""

from __future__ import annotations

import logging
from uuid import UUID

from data_contracts.errors import StorageUnavailable
from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable

# A server that is restarted beside the worker answers again within this many of Prefect's retries.
_RETRIES = 5

log = logging.getLogger("trainwright")


def give_to_worker_again() -> None:
    """Let another worker take the flow run that this process executes; StorageUnavailable."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        give_again([context.flow_run.id])


def give_again(flow_runs: list[UUID]) -> None:
    """Let workers take flow runs again that are at work; the others stay as they are.

    A gang's nodes stay, too: their conductor starts others. Raises: StorageUnavailable.
    """
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Scheduled

    try:
        with asking(_RETRIES) as client:
            for number in flow_runs:
                try:
                    current = client.read_flow_run(number)
                except ObjectNotFound:  # a person deleted it meanwhile
                    continue
                at_work = current.state is not None and (current.state.is_running() or current.state.is_pending())
                if at_work and "generation" not in current.parameters:
                    message = "Its worker was stopped as planned."
                    client.set_flow_run_state(number, Scheduled(name="AwaitingRetry", message=message), force=True)
                    log.info("the flow run %s is given to a worker again", current.name)
    except Exception as error:
        away = unreachable(error)
        raise error if away is None or isinstance(error, StorageUnavailable) else away from error
