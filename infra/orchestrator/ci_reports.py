"""Keeps the CI report of a flow run in Prefect, for a job that has no access to the store, and reads it there.

It is an artifact without a key, so Prefect's list of pages does not show it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from pydantic import ValidationError

from data_contracts.run_report import CiReport
from infra.orchestrator.admission import asking
from infra.orchestrator.flow_runs.resuming import CI_TAG as CI_TAG

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_TYPE = "trainwright-ci"

log = logging.getLogger("trainwright")


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
