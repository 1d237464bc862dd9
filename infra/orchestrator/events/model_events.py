"""The Prefect events about a model, and the automation that starts a deployment when another model is promoted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from data_contracts.errors import StorageUnavailable
from data_contracts.handoffs import Receipt
from data_contracts.run_report import RunReport
from infra.orchestrator.events import notices
from infra.orchestrator.events.events import post

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PROMOTED = "trainwright.model.promoted"
ROLLED_BACK = "trainwright.model.rolled_back"
CANARY_ENDED = "trainwright.model.canary_ended"
# By the verdict that each one tells of; all other verdicts change nothing of a model.
EVENTS = {
    "promoted": PROMOTED,
    "canary": "trainwright.model.canary",
    "not_promoted": "trainwright.model.not_promoted",
    "waiting": "trainwright.model.waiting",
}
# `MODEL@ALIAS`, by which automations choose.
NAME = "trainwright.name"

log = logging.getLogger("trainwright")


def announce_verdict(report: RunReport) -> bool:
    """Emit the event of a run's verdict, if there is one; a failure is one warning and False."""
    event, model = EVENTS.get(report.verdict), report.model
    if event is None or model is None:
        return True
    payload = {
        "run_id": report.run_id,
        "version": model.version,
        "sentence": report.sentence,
        "metrics": report.metrics,
        "actor": report.actor,
        "trigger": report.trigger,
    }
    name, key = (model.name, model.alias or ""), f"{report.run_id}/{report.finished}"
    try:
        _send(event, name, payload, key, pipeline=report.pipeline)
    except Exception as error:
        log.warning("Prefect did not take the event %s; nothing else depends on it: %s", event, error)
        return False
    return True


def announce_rollback(receipt: Receipt, by: str, at: datetime) -> None:
    """Emit the event of a rollback, in a process that is connected to a server; StorageUnavailable if it fails.

    Args:
        receipt: of the rollback; it has a ref.
        at: the time of the rollback, which the event has however late it is emitted.
    """
    assert receipt.ref is not None
    message = notices.of_rollback(f"{receipt.model}@{receipt.alias}", receipt.version, receipt.previous)
    payload = {"version": receipt.version, "previous": receipt.previous, "sentence": receipt.sentence, "actor": by}
    try:
        _send(ROLLED_BACK, (receipt.model, receipt.alias), {**payload, **message}, receipt.ref.seal, at=at)
    except Exception as error:
        raise StorageUnavailable(f"Prefect did not take the event {ROLLED_BACK}: {error}") from error


def announce_canary_end(receipt: Receipt, by: str) -> bool:
    """Emit the event of a canary's end, whatever it was; a failure is one warning and False."""
    outcome = "withdrawn" if receipt.canary is None else receipt.canary.outcome
    payload = {"version": receipt.version, "outcome": outcome, "sentence": receipt.sentence, "actor": by}
    assert receipt.ref is not None
    try:
        _send(CANARY_ENDED, (receipt.model, receipt.alias), payload, receipt.ref.seal)
    except Exception as error:
        log.warning("Prefect did not take the event %s; nothing else depends on it: %s", CANARY_ENDED, error)
        return False
    return True


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
        name=_automation(deployment),
        description=f"Starts {deployment} when {' or '.join(names)} is promoted.",
        trigger=EventTrigger(expect={PROMOTED}, match={NAME: list(names)}, posture=Posture.Reactive, threshold=1),
        actions=[RunDeployment(deployment_id=known.id)],
    )
    existing = _ours(client, deployment)
    if existing:
        client.update_automation(existing[0].id, wanted)
    else:
        client.create_automation(wanted)
    return wanted.name


def stop_starting_after(client: SyncPrefectClient, deployment: str) -> str | None:
    """Delete the automation that an earlier deploy made; returns its name, or None if there is none."""
    existing = _ours(client, deployment)
    for one in existing:
        client.delete_automation(one.id)
    return _automation(deployment) if existing else None


def _ours(client: SyncPrefectClient, deployment: str) -> list[Any]:
    from prefect.events.schemas.automations import EventTrigger

    found = client.read_automations_by_name(_automation(deployment))
    return [one for one in found if isinstance(one.trigger, EventTrigger) and PROMOTED in one.trigger.expect]


def _automation(deployment: str) -> str:
    return f"{deployment} after promotions"


def _send(
    event: str,
    name: tuple[str, str],
    payload: Mapping[str, Any],
    key: str,
    *,
    pipeline: str | None = None,
    at: datetime | None = None,
) -> None:
    model, alias = name
    resource = {
        "prefect.resource.id": f"trainwright.model.{model}",
        "prefect.resource.name": model,
        "trainwright.alias": alias,
        NAME: f"{model}@{alias}",
    }
    post(event, resource, payload, key, pipelines=[pipeline] if pipeline else [], at=at)
