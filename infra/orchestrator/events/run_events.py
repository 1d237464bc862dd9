"""The events about a run's end and about a run whose process died, by which people are told; `notify` chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_contracts.errors import Hung, StorageUnavailable
from data_contracts.run_report import RunReport
from infra.audit import now
from infra.orchestrator.events import notices
from infra.orchestrator.events.events import page_of, pipeline_resource, send

# Followed by the verdict.
ENDED = "trainwright.run."
FAILED = f"{ENDED}failed"
RESUMED = f"{ENDED}resumed"
NOT_RESUMED = f"{ENDED}not_resumed"
HUNG = "trainwright.training.hung"
RESTARTED = "trainwright.training.restarted"
STALLED = f"{ENDED}stalled"
# Of a crash: whether Prefect's server has told people of it (`watch.py`) before the reaper found it.
TOLD = "trainwright.told"


def announce_end(report: RunReport, flow_run: str | None = None) -> bool:
    """Emit the event of a run's verdict, once for each cause of a run; a failure is one warning and False.

    A run that waits may ask again, when what it asked about has changed: each question is a cause of its own.

    Args:
        flow_run: whose page the event names; default: the one that is carried out here.
    """
    cause = (report.error or {}).get("cause", "")
    key = f"{report.run_id}/{cause}/{notices.question_of(report).get('n', '')}"
    payload = {"verdict": report.verdict, "exit_code": report.exit_code, "cause": cause, "trigger": report.trigger}
    message = notices.of_report(report, page_of(flow_run))
    return _announce(ENDED + report.verdict, report.pipeline, {"run_id": report.run_id, **payload, **message}, key)


def announce_unopened(pipeline: str, flow_run: str, error: Exception) -> None:
    """Emit the event of a flow run that failed before it had a run; a failure is one warning."""
    message = notices.of_unopened(pipeline, error, page_of(flow_run))
    _announce(FAILED, pipeline, {"verdict": "failed", **message}, flow_run)


def announce_resumed(
    pipeline: str, run_id: str, n: int, flow_run: str | None, sentence: str, key: str, *, told: bool = False
) -> None:
    """Emit the event of a crash whose run is resumed; a failure is one warning. `told`: as TOLD."""
    message = notices.of_crash(pipeline, run_id, n, page_of(flow_run))
    _announce(RESUMED, pipeline, {"run_id": run_id, "sentence": sentence, **message}, key, {TOLD: str(told).lower()})


def announce_not_resumed(pipeline: str, run_id: str, flow_run: str | None, sentence: str) -> None:
    """Emit the event of a crash whose run is not resumed by itself; a failure is one warning."""
    message = notices.of_surrender(pipeline, run_id, page_of(flow_run))
    _announce(NOT_RESUMED, pipeline, {"run_id": run_id, "sentence": sentence, **message}, f"{run_id}/{flow_run}")


def announce_restart(pipeline: str, run_id: str, training: str, generation: int, cause: str) -> None:
    """Emit the event of a generation that failed and is followed by another; a failure is one warning."""
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:  # a stage command, which tells no server anything
        return
    payload = {"run_id": run_id, "generation": generation, "cause": cause}
    message = notices.of_restart(pipeline, run_id, generation, cause, page_of())
    event = HUNG if cause == Hung.cause else RESTARTED
    _announce(event, pipeline, {**payload, **message}, f"{run_id}/{training}/{generation}")


def announce_stall(pipeline: str, run_id: str, error: StorageUnavailable) -> None:
    """Emit the event of a run that waits because its store takes nothing; a failure is one warning."""
    payload = {"run_id": run_id, "cause": error.cause, "sentence": str(error)}
    _announce(STALLED, pipeline, {**payload, **notices.of_stall(pipeline, run_id, page_of())}, f"{run_id}/{now()}")


def _announce(
    event: str, pipeline: str, payload: Mapping[str, Any], key: str, labels: Mapping[str, str] | None = None
) -> bool:
    resource = {"prefect.resource.id": pipeline_resource(pipeline), "prefect.resource.name": pipeline}
    return send(event, {**resource, **(labels or {})}, payload, key, pipeline)
