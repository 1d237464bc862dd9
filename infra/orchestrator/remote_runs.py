"""Starts a pipeline's deployment on the Prefect server, waits for its flow run, and cancels it."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from data_contracts.errors import Cancelled, Interrupted, TrainwrightError, UsageError
from infra.orchestrator.admission import ASK_S, asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.ci_reports import CI_TAG
from infra.orchestrator.deployments import CONDUCTOR, find_deployment, why_nobody_conducts
from infra.processes.processes import uninterrupted
from infra.store.retry import Outage

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

log = logging.getLogger("trainwright")


def begin(client: SyncPrefectClient, title: str, parameters: Mapping[str, Any]) -> FlowRun:
    """Start a flow run of the deployment `retrain/NAME` for a CI job.

    Raises:
        UsageError: there is no such deployment, it is not a pipeline's, or it does not take the parameters.
        GangIncomplete: no worker of its pool is online.
    """
    known = find_deployment(client, title)
    if known is None:
        raise UsageError(
            f"This Prefect server has no deployment {title}.",
            remedy="Make it with `trainwright deploy`; `prefect deployment ls` lists those that there are.",
        )
    if known.entrypoint != CONDUCTOR or known.work_pool_name is None:
        raise UsageError(
            f"The deployment {title} does not run a pipeline of Trainwright on a work pool.",
            remedy="Name one that `trainwright deploy` made.",
        )
    if nobody := why_nobody_conducts(client, known.work_pool_name):
        raise nobody
    # A signal meanwhile would leave a flow run that nobody waits for and nobody cancels.
    with uninterrupted():
        return client.create_flow_run_from_deployment(
            known.id, parameters=dict(parameters), tags=[CI_TAG], idempotency_key=f"ci-{uuid.uuid4()}"
        )


def wait(flow_run: FlowRun) -> State:
    """The final state of a flow run, or the one in which it waits for a person.

    Raises:
        Interrupted: the flow run was deleted meanwhile.
        StorageUnavailable: the server has been unreachable for too long; the flow run continues.
    """
    outage = Outage()
    while True:
        try:
            with asking() as client:
                return _followed(client, flow_run, outage)
        except TrainwrightError:
            raise
        except Exception as error:
            away = unreachable(error)
            if away is None:
                raise
            outage.failed(away)
            time.sleep(ASK_S)


def _followed(client: SyncPrefectClient, flow_run: FlowRun, outage: Outage) -> State:
    """The state that ends the wait; each state on the way is logged. Raises what the client raises."""
    shown = ""
    while True:
        state = _state(client, flow_run)
        outage.answered()
        if state is not None and state.name != shown:
            shown = state.name or ""
            log.info("the remote run is %s", shown)
        if state is not None and (state.is_final() or state.is_paused()):
            return state
        time.sleep(ASK_S)


def _state(client: SyncPrefectClient, flow_run: FlowRun) -> State | None:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_flow_run(flow_run.id).state
    except ObjectNotFound:
        raise Interrupted(
            f"The flow run {flow_run.name} was deleted in Prefect, and not by this job.",
            remedy="Start the job again.",
        ) from None


def cancel(flow_run: FlowRun) -> None:
    """Ask Prefect to cancel a flow run, whose worker ends it and its gang; nothing interrupts the request."""
    from prefect.states import Cancelling

    with uninterrupted():
        try:
            with asking(retries=1) as client:
                client.set_flow_run_state(flow_run.id, Cancelling(message="The CI job was cancelled."))
        except Exception as error:
            log.warning("The remote run %s could not be cancelled, and continues: %s", flow_run.name, error)
            return
    log.info("The remote run %s is cancelled.", flow_run.name)


def without_report(flow_run: FlowRun, state: State) -> TrainwrightError:
    """The error for a flow run that has ended and left no report."""
    if state.is_cancelled():
        return Cancelled(
            f"The remote run {flow_run.name} was cancelled in Prefect, and not by this job.",
            remedy="Start the job again to continue it.",
        )
    how = "its process died" if state.is_crashed() else f"its state is {state.name}"
    return Interrupted(
        f"The remote run {flow_run.name} ended without a report: {how}.",
        remedy="Look at its log in Prefect; then start the job again.",
    )
