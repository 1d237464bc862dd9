"""The automations that start a pipeline's deployment: when its data has drifted, or another model is promoted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infra.orchestrator.events.drift_events import DEPLOYMENT, EVENT, REJECTED
from infra.orchestrator.events.events import pipeline_resource
from infra.orchestrator.events.model_events import NAME, PROMOTED

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# The run that the automation starts trains on the data that was rejected, so no event can follow from it.
ACCEPTS = "contract.drift.fail_on=never"


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
    name = _drift_automation(deployment)
    wanted = AutomationCore(
        name=name,
        description=f"Retrains on data that {deployment} rejected because of drift.",
        trigger=EventTrigger(
            expect={EVENT},
            match={"prefect.resource.id": pipeline_resource(pipeline), REJECTED: "true", DEPLOYMENT: str(known.id)},
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

    name = _drift_automation(deployment)
    ours = [
        one
        for one in client.read_automations_by_name(name)
        if isinstance(one.trigger, EventTrigger) and EVENT in one.trigger.expect
    ]
    for one in ours:
        client.delete_automation(one.id)
    return name if ours else None


def _drift_automation(deployment: str) -> str:
    return f"{deployment} when its data drifted"


def start_after(client: SyncPrefectClient, deployment: str, names: Sequence[str]) -> str:
    """Make the automation, or change it: a promotion of any of the models starts the deployment.

    Args:
        deployment: its name, `retrain/NAME`.
        names: each `MODEL@ALIAS`.

    Returns:
        The automation's name.
    """
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    known = client.read_deployment_by_name(deployment)
    wanted = AutomationCore(
        name=_promotion_automation(deployment),
        description=f"Starts {deployment} when {' or '.join(names)} is promoted.",
        trigger=EventTrigger(expect={PROMOTED}, match={NAME: list(names)}, posture=Posture.Reactive, threshold=1),
        actions=[RunDeployment(deployment_id=known.id)],
    )
    existing = _after_promotions(client, deployment)
    if existing:
        client.update_automation(existing[0].id, wanted)
    else:
        client.create_automation(wanted)
    return wanted.name


def stop_starting_after(client: SyncPrefectClient, deployment: str) -> str | None:
    """Delete the automation that an earlier deploy made; returns its name, or None if there is none."""
    existing = _after_promotions(client, deployment)
    for one in existing:
        client.delete_automation(one.id)
    return _promotion_automation(deployment) if existing else None


def _after_promotions(client: SyncPrefectClient, deployment: str) -> list[Any]:
    from prefect.events.schemas.automations import EventTrigger

    found = client.read_automations_by_name(_promotion_automation(deployment))
    return [one for one in found if isinstance(one.trigger, EventTrigger) and PROMOTED in one.trigger.expect]


def _promotion_automation(deployment: str) -> str:
    return f"{deployment} after promotions"
