"""The events about a run whose process died, by which people are told."""

from __future__ import annotations

from infra.orchestrator.events import pipeline_resource, send

RESUMED = "trainwright.run.resumed"
NOT_RESUMED = "trainwright.run.not_resumed"


def announce(event: str, pipeline: str, run_id: str, sentence: str, key: str) -> None:
    """Emit an event about a run; a failure is one warning."""
    resource = {"prefect.resource.id": pipeline_resource(pipeline), "prefect.resource.name": pipeline}
    send(event, resource, {"run_id": run_id, "sentence": sentence}, key, pipeline)
