"""Between a run and Prefect's flow run: what started it, its name and tags, and the state that says its verdict."""

from __future__ import annotations

import logging
import os
import shlex
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prefect import tags
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import RunReport, Trigger
from infra.orchestrator.api import unreachable
from infra.orchestrator.artifacts import stage_artifact
from tasks import pages
from tasks.policies import run_tags
from tasks.run import Run

TRIGGER_VARIABLE = "TRAINWRIGHT_TRIGGER"
log = logging.getLogger("trainwright")


def flow_name() -> str:
    """A run name that a person recognises: the spec's folder and file, and the window if there is one."""
    asked = flow_run.parameters
    path = Path(asked.get("spec", "retrain"))
    name = path.resolve().parent.name if path.stem == "pipeline" else path.stem
    return " ".join(part for part in (name, asked.get("window"), asked.get("set")) if part)


def started_by(key: str | None) -> dict[str, Any]:
    """Trigger, scheduled time and idempotency key of this flow run.

    Without a `key` of the caller's it is the scheduled time for a schedule, commit + code + spec + window for CI, and
    the flow run's id otherwise, so that a flow run that Prefect executes twice is one run.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    trigger = _trigger(run)
    scheduled = run.expected_start_time if run else None
    if key is None and run is not None and trigger != "ci":
        key = f"schedule:{run.deployment_id}:{scheduled}" if trigger == "schedule" else f"flow-run:{run.id}"
    return {"key": key, "trigger": trigger, "scheduled": scheduled}


def _trigger(run: Any) -> Trigger:
    told = os.environ.get(TRIGGER_VARIABLE)
    if told in ("cli", "ci"):
        return told  # type: ignore[return-value]
    if run is None:
        return "cli"
    if run.auto_scheduled:
        return "schedule"
    return "automation" if run.created_by and run.created_by.type == "AUTOMATION" else "ui"


def tagged(run: Run) -> AbstractContextManager[Any]:
    """Carry the spec's cost tags to every task run inside, and to the flow run itself."""
    wanted = run_tags(run.spec.tags)
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None and wanted:
        from prefect import get_client

        try:
            with get_client(sync_client=True) as client:
                client.update_flow_run(context.flow_run.id, tags=sorted({*context.flow_run.tags, *wanted}))
        except Exception as error:  # tags are for people: the run goes on without them
            log.warning("The flow run's tags are not stored in Prefect: %s", error)
    return tags(*wanted)


def overrides(text: str) -> list[str]:
    """The `a.b=c` settings of the flow's `set` parameter; UsageError for a quote that is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"set: {text!r} cannot be split into settings: {error}.",
            remedy="Separate a.b=c settings by spaces; quote a value that holds spaces or quotes.",
        ) from error


def explained(error: Exception) -> TrainwrightError:
    """Any failure as one of the tree: a server that went away, else a bug of ours."""
    if isinstance(error, TrainwrightError):
        return error
    return unreachable(error) or TrainwrightError(f"Internal error: {type(error).__name__}: {error}.")


def as_state(run: Run, report: RunReport) -> State:
    """The flow run's last state: its name is the verdict, its data the report."""
    stage_artifact(pages.artifact_key(run, "report"), pages.run_page(report), f"{report.pipeline}: {report.verdict}")
    name = report.verdict.replace("_", " ").title().replace(" ", "")
    kind = {"promoted": Completed, "unchanged": Completed, "not_promoted": Completed, "cancelled": Cancelled}
    make = kind.get(report.verdict, Failed)
    return make(name=name, message=report.sentence, data=report.to_json())
