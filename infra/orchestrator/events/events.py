"""Sends Trainwright's own events to Prefect."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from infra.orchestrator.admission import asking

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# Events of one id are one event to Prefect's server, so two processes may tell of one end.
_IDS = uuid.UUID("5a0b4c1e-6a35-4c5f-9d0e-0d6c3f0f7d55")
# Also if the clocks of two machines differ: by default the server looks at events before its own time alone.
_EVER = {"since": "2000-01-01T00:00:00Z", "until": "2200-01-01T00:00:00Z"}
# An event with more than 100 related resources is refused.
MOST_PIPELINES = 90

log = logging.getLogger("trainwright")


def pipeline_resource(pipeline: str) -> str:
    """The id of a pipeline as a resource of events."""
    return f"trainwright.pipeline.{pipeline}"


def page_of(flow_run: str | None = None) -> str | None:
    """Address of a flow run's page, by default of the one that is carried out here; None if it is not known."""
    from prefect.runtime import flow_run as own
    from prefect.utilities.urls import url_for

    of = flow_run or own.id
    return url_for("flow-run", obj_id=str(of)) if of else None


def send(event: str, resource: Mapping[str, str], payload: Mapping[str, Any], key: str, *pipelines: str) -> bool:
    """`post`; a failure is one warning and False, for an event on which nothing depends."""
    try:
        post(event, resource, payload, key, pipelines=pipelines)
    except Exception as error:
        log.warning("Prefect did not take the event %s; nothing else depends on it: %s", event, error)
        return False
    return True


def post(
    event: str,
    resource: Mapping[str, str],
    payload: Mapping[str, Any],
    key: str,
    *,
    pipelines: Sequence[str] = (),
    at: datetime | None = None,
) -> None:
    """Post the event and wait, briefly, until the server has it: the process may end right after.

    An event that the server has already is not posted again. By itself it forgets after five minutes which events it
    took, and an automation may act a second time. So a process that was killed in between is repeated, and one that
    was not is not.

    Args:
        key: events of one name and key are one event, as long as the server keeps events (7 days by default).
        pipelines: those to name as related, of which Prefect takes a hundred less a few.
        at: when it happened; default: now.
    """
    from prefect.events.schemas.events import Event, RelatedResource, Resource

    related = [*_own_flow_run().items(), *(("pipeline", pipeline_resource(one)) for one in pipelines[:MOST_PIPELINES])]
    emitted = Event(
        id=uuid.uuid5(_IDS, f"{event}/{key}"),
        occurred=at or datetime.now(UTC),
        event=event,
        resource=Resource(dict(resource)),
        related=[RelatedResource({"prefect.resource.id": one, "prefect.resource.role": role}) for role, one in related],
        payload=dict(payload),
    )
    with asking(retries=1) as client:
        if not _is_known(client, emitted.id):
            client.request("POST", "/events", json=[emitted.model_dump(mode="json")])


def _own_flow_run() -> dict[str, str]:
    """The flow run that is carried out here, and its deployment, as related resources by role."""
    from prefect.context import FlowRunContext
    from prefect.runtime import flow_run

    related = {"flow-run": f"prefect.flow-run.{flow_run.id}"} if flow_run.id else {}
    # `prefect.runtime.deployment` asks the server, with a client of its own, if there is no deployment.
    context = FlowRunContext.get()
    known = context and context.flow_run and context.flow_run.deployment_id
    return {**related, "deployment": f"prefect.deployment.{known}"} if known else related


def _is_known(client: SyncPrefectClient, event: uuid.UUID) -> bool:
    """Whether the server has the event; False if it does not say so: a message too many is better than none."""
    wanted = {"id": {"id": [str(event)]}, "occurred": _EVER}
    try:
        return bool(client.request("POST", "/events/filter", json={"filter": wanted, "limit": 1}).json()["events"])
    except Exception as error:
        log.debug("The server did not say whether it has the event %s: %s", event, error)
        return False
