"""Sends Trainwright's own events to Prefect."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from infra.orchestrator.admission import asking

# Events of one id are one event to Prefect's server, so two processes may tell of one end.
_IDS = uuid.UUID("5a0b4c1e-6a35-4c5f-9d0e-0d6c3f0f7d55")

log = logging.getLogger("trainwright")


def pipeline_resource(pipeline: str) -> str:
    """The id of a pipeline as a resource of events."""
    return f"trainwright.pipeline.{pipeline}"


def send(event: str, resource: Mapping[str, str], payload: Mapping[str, Any], key: str, pipeline: str) -> None:
    """`post`; a failure is one warning, for an event on which nothing depends."""
    try:
        post(event, resource, payload, key, pipeline=pipeline)
    except Exception as error:
        log.warning("Prefect did not take the event %s; nothing else depends on it: %s", event, error)


def post(
    event: str,
    resource: Mapping[str, str],
    payload: Mapping[str, Any],
    key: str,
    *,
    pipeline: str | None = None,
    at: datetime | None = None,
) -> None:
    """Post the event and wait, briefly, until the server has it: the process may end right after.

    Args:
        key: events of one name and key are one event.
        pipeline: the pipeline to name as related.
        at: when it happened; default: now.
    """
    from prefect.events.schemas.events import Event, RelatedResource, Resource
    from prefect.runtime import deployment, flow_run

    related = {"flow-run": f"prefect.flow-run.{flow_run.id}"} if flow_run.id else {}
    related |= {"deployment": f"prefect.deployment.{deployment.id}"} if deployment.id else {}
    related |= {"pipeline": pipeline_resource(pipeline)} if pipeline else {}
    emitted = Event(
        id=uuid.uuid5(_IDS, f"{event}/{key}"),
        occurred=at or datetime.now(UTC),
        event=event,
        resource=Resource(dict(resource)),
        related=[
            RelatedResource({"prefect.resource.id": one, "prefect.resource.role": role})
            for role, one in related.items()
        ],
        payload=dict(payload),
    )
    with asking(retries=1) as client:
        client.request("POST", "/events", json=[emitted.model_dump(mode="json")])
