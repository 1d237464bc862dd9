"""The Prefect event that raw data has drifted."""

from __future__ import annotations

from data_contracts.records import DriftReport
from infra.orchestrator.events.events import page_of, pipeline_resource, send
from infra.orchestrator.events.notices import of_drift

EVENT = "trainwright.data.drifted"
REJECTED = "trainwright.rejected"
DEPLOYMENT = "trainwright.deployment"


def announce(pipeline: str, run_id: str, report: DriftReport, rejected: bool) -> None:
    """Emit the event; a failure is one warning, because nothing of the run depends on it.

    Args:
        rejected: whether the run ends because of it, so that the data is not trained on.
    """
    from prefect.runtime import deployment as own_deployment

    payload = {
        "run_id": run_id,
        "against": report.against,
        "verdict": report.verdict,
        "columns": [one.column for one in report.moved],
        "sentence": report.sentence,
        **of_drift(pipeline, run_id, len(report.moved), rejected, page_of()),
    }
    labels = {"prefect.resource.name": pipeline, REJECTED: str(rejected).lower()}
    labels[DEPLOYMENT] = str(own_deployment.id or "none")  # of a run by hand
    resource = {"prefect.resource.id": pipeline_resource(pipeline), **labels}
    send(EVENT, resource, payload, f"{run_id}/{rejected}", pipeline)
