"""The Prefect events about a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from data_contracts.errors import StorageUnavailable
from data_contracts.handoffs import Receipt
from data_contracts.run_report import RunReport
from infra.orchestrator.events import notices
from infra.orchestrator.events.events import post

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
