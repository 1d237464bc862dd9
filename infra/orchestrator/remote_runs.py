"""Starts a pipeline's deployment for a CI job, waits for its run, also if it is resumed, and cancels it.

The job may have no access to the store, so the flow run keeps its CI report in Prefect, as an artifact without a key,
which Prefect's list of pages does not show.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pydantic import ValidationError

from data_contracts.errors import Cancelled, GangIncomplete, Interrupted, TrainwrightError, UsageError
from data_contracts.run_report import CiReport
from infra.orchestrator.api import ASK_S, asking, unreachable
from infra.orchestrator.deployments import CONDUCTOR, REAPER, find_deployment, find_pool, obstacle_of
from infra.orchestrator.resuming import CI_TAG, resumption_of, run_ids_of
from infra.processes.processes import uninterrupted
from infra.store.lease import Outage

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

    from data_contracts.run_report import CiReport


# A reaper looks every three minutes, and lets a lease stand still for 30 s; a worker then starts its flow run.
REAPED_S = 300.0

T = TypeVar("T")
_TYPE = "trainwright-ci"

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
    if (obstacle := obstacle_of(client, find_pool(client, known.work_pool_name))) is not None:
        if obstacle.name == "no_worker":
            raise GangIncomplete(obstacle.sentence, remedy=obstacle.remedy)
        log.warning("%s The run waits. %s", obstacle.sentence, obstacle.remedy)
    # A signal meanwhile would leave a flow run that nobody waits for and nobody cancels.
    with uninterrupted():
        return client.create_flow_run_from_deployment(
            known.id, parameters=dict(parameters), tags=[CI_TAG], idempotency_key=f"ci-{uuid.uuid4()}"
        )


@dataclass(frozen=True)
class Ended:
    """How a remote run ended.

    Attributes:
        flow_run: the one that carried it out last, as it is then.
        report: None if it left none.
    """

    flow_run: FlowRun
    state: State
    report: CiReport | None


def follow(flow_run: FlowRun) -> Ended:
    """Wait for the end of a run; if its process dies, for the end of what the reaper has resume it.

    KeyboardInterrupt cancels whatever carries it out. A run that has ended keeps its state.

    Raises:
        Interrupted: the flow run was deleted meanwhile.
        StorageUnavailable: the server has been unreachable for too long; the flow run continues.
    """
    ended: State | None = None
    try:
        while True:
            flow_run, state = wait(flow_run)
            ended = state
            report = _asked(lambda client, run=flow_run: read_ci_report(client, run.id))  # type: ignore[misc]
            resumed = _resumed(flow_run) if report is None and state.is_crashed() else None
            if resumed is None:
                return Ended(flow_run, state, report)
            flow_run, ended = resumed, None
    except KeyboardInterrupt:
        if ended is None or ended.is_crashed() or not ended.is_final():
            cancel(flow_run, is_dead=ended is not None)
        raise


def wait(flow_run: FlowRun) -> tuple[FlowRun, State]:
    """A flow run at its end, or when it waits for a person, and its state; raises as `follow` does.

    Only then its name has its run: that is opened long after the flow run was made.
    """
    outage = Outage()
    return _asked(lambda client: _followed(client, flow_run, outage), outage)


def _asked(question: Callable[[SyncPrefectClient], T], outage: Outage | None = None) -> T:
    """The server's answer; it is asked again while it does not answer, for as long as an outage may last."""
    outage = outage or Outage()
    while True:
        try:
            with asking() as client:
                return question(client)
        except TrainwrightError:
            raise
        except Exception as error:
            away = unreachable(error)
            if away is None:
                raise
            outage.failed(away)
            time.sleep(ASK_S)


def _resumed(flow_run: FlowRun) -> FlowRun | None:
    """The flow run that continues one whose process died: itself, executed again, or another.

    None if nobody resumes it within REAPED_S; at once if there is no reaper, or it died before it opened its run.
    """
    if not run_ids_of(flow_run) or not _asked(_is_reaped):
        return None
    log.info("The remote run's process died; waiting up to %.0f s for the reaper to have it resumed.", REAPED_S)
    deadline = time.monotonic() + REAPED_S
    while time.monotonic() < deadline:
        found = _asked(lambda client: _continued(client, flow_run))
        if found is not None:
            log.info("The flow run %s resumes it.", found.name)
            return found
        time.sleep(ASK_S)
    return None


def _is_reaped(client: SyncPrefectClient) -> bool:
    """Whether a reaper looks for dead runs by schedule."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    reapers = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[REAPER.flow])))
    return any(not one.paused and any(schedule.active for schedule in one.schedules) for one in reapers)


def _continued(client: SyncPrefectClient, flow_run: FlowRun) -> FlowRun | None:
    current = _current(client, flow_run)
    if current.state is not None and not current.state.is_crashed():
        return current
    return resumption_of(client, current)


def _followed(client: SyncPrefectClient, flow_run: FlowRun, outage: Outage) -> tuple[FlowRun, State]:
    """The flow run in the state that ends the wait; each state on the way is logged. Raises what the client raises."""
    shown = ""
    while True:
        current = _current(client, flow_run)
        state = current.state
        outage.answered()
        if state is not None and state.name != shown:
            shown = state.name or ""
            log.info("the remote run is %s", shown)
        if state is not None and (state.is_final() or state.is_paused()):
            return current, state
        time.sleep(ASK_S)


def _current(client: SyncPrefectClient, flow_run: FlowRun) -> FlowRun:
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_flow_run(flow_run.id)
    except ObjectNotFound:
        raise Interrupted(
            f"The flow run {flow_run.name} was deleted in Prefect, and not by this job.",
            remedy="Start the job again.",
        ) from None


def cancel(flow_run: FlowRun, *, is_dead: bool = False) -> None:
    """Ask Prefect to cancel a flow run, whose worker ends it and its gang; nothing interrupts the request.

    Args:
        is_dead: its process died, so nobody has anything to end, and the reaper is to leave it alone.
    """
    from prefect import states

    message = "The CI job was cancelled."
    asked: State = states.Cancelled(message=message) if is_dead else states.Cancelling(message=message)
    with uninterrupted():
        try:
            with asking(retries=1) as client:
                client.set_flow_run_state(flow_run.id, asked, force=is_dead)
        except Exception as error:
            log.warning("The remote run %s could not be cancelled, and continues: %s", flow_run.name, error)
            return
    log.info("The remote run %s is cancelled.", flow_run.name)


def without_report(ended: Ended) -> TrainwrightError:
    """The error for a remote run that has ended and left no report; `details` name its flow run."""
    flow_run, state = ended.flow_run, ended.state
    details = {"flow_run": str(flow_run.id), "name": flow_run.name, "run_id": "".join(run_ids_of(flow_run)[:1])}
    if state.is_cancelled():
        return Cancelled(
            f"The remote run {flow_run.name} was cancelled in Prefect, and not by this job.",
            remedy="Start the job again to continue it.",
            details=details,
        )
    how = "its process died, and nobody resumed it" if state.is_crashed() else f"its state is {state.name}"
    return Interrupted(
        f"The remote run {flow_run.name} ended without a report: {how}.",
        remedy="Look at its log in Prefect; then start the job again, which continues it.",
        details=details,
    )


def is_for_ci() -> bool:
    """Whether a CI job started the flow run that is carried out here, and waits for it."""
    from prefect.runtime import flow_run

    return CI_TAG in (flow_run.tags or [])


def keep_ci_report(make: Callable[[], CiReport]) -> None:
    """Make the report of the flow run that is carried out here, and keep it; a failure is one warning."""
    from prefect.client.schemas.actions import ArtifactCreate
    from prefect.runtime import flow_run

    try:
        with asking(retries=2) as client:
            client.create_artifact(ArtifactCreate(type=_TYPE, data=make().to_json(), flow_run_id=UUID(flow_run.id)))
    except Exception as error:  # the run has ended as it has; the job then knows only Prefect's state
        log.warning("Prefect did not store the report for CI: %s", type(error).__name__)


def read_ci_report(client: SyncPrefectClient, flow_run: UUID) -> CiReport | None:
    """The newest report of a flow run; None if it left none, or one that is not understood here.

    UsageError if a newer Trainwright wrote it.
    """
    from prefect.client.schemas.filters import (
        ArtifactFilter,
        ArtifactFilterFlowRunId,
        ArtifactFilterType,
    )
    from prefect.client.schemas.sorting import ArtifactSort

    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]), type=ArtifactFilterType(any_=[_TYPE]))
    found = client.read_artifacts(artifact_filter=of_run, sort=ArtifactSort.CREATED_DESC, limit=1)
    if not found or not isinstance(found[0].data, dict):
        return None
    try:
        return CiReport.from_json(found[0].data)
    except ValidationError:
        log.warning("The remote run's report for CI cannot be read.")
        return None
