"""The Prefect event that raw data has drifted, and the automation that starts a retraining when it arrives."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from data_contracts.records import DriftReport
from infra.orchestrator.events.events import page_of, pipeline_resource, send
from infra.orchestrator.events.notices import of_drift

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

EVENT = "trainwright.data.drifted"
REJECTED = "trainwright.rejected"
_DEPLOYMENT = "trainwright.deployment"
# The run that the automation starts trains on the data that was rejected, so no event can follow from it.
ACCEPTS = "contract.drift.fail_on=never"


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
    labels[_DEPLOYMENT] = str(own_deployment.id or "none")  # of a run by hand
    resource = {"prefect.resource.id": pipeline_resource(pipeline), **labels}
    send(EVENT, resource, payload, f"{run_id}/{rejected}", pipeline)


def retrain_when_drifted(client: SyncPrefectClient, deployment: str, pipeline: str) -> str:
    """Make the automation, or change it: if drift rejects a run of the deployment, another one accepts the data.

    Runs by hand and runs of other deployments start nothing: their settings may be others.

    Args:
        deployment: its name, `retrain/NAME`.

    Returns:
        The automation's name.
    """
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    known = client.read_deployment_by_name(deployment)
    settings = shlex.split(str(known.parameters.get("set") or ""))
    parameters: dict[str, Any] = {"set": shlex.join([*settings, ACCEPTS])}
    name = _name(deployment)
    wanted = AutomationCore(
        name=name,
        description=f"Retrains on data that {deployment} rejected because of drift.",
        trigger=EventTrigger(
            expect={EVENT},
            match={"prefect.resource.id": pipeline_resource(pipeline), REJECTED: "true", _DEPLOYMENT: str(known.id)},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[RunDeployment(deployment_id=known.id, parameters=parameters)],
    )
    existing = client.read_automations_by_name(name)
    if existing:
        client.update_automation(existing[0].id, wanted)
    else:
        client.create_automation(wanted)
    return name


def stop_retraining(client: SyncPrefectClient, deployment: str) -> str | None:
    """Delete the automation that an earlier deploy made; returns its name, or None if there is none."""
    from prefect.events.schemas.automations import EventTrigger

    name = _name(deployment)
    ours = [
        one
        for one in client.read_automations_by_name(name)
        if isinstance(one.trigger, EventTrigger) and EVENT in one.trigger.expect
    ]
    for one in ours:
        client.delete_automation(one.id)
    return name if ours else None


def _name(deployment: str) -> str:
    return f"{deployment} when its data drifted"
