"""Sends Trainwright's own events to Prefect: about runs, models, drift of raw data, budgets and stores.

`automations.py` makes what acts on them or tells people. What people are told is in an event's payload: subject and
body in fixed sentences, filled with names that Trainwright checked. A message may leave for a chat, so the text of an
error is not in it: it may quote a value of the data. The run's page has it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_contracts.errors import Hung, StorageUnavailable, TrainwrightError, from_json
from data_contracts.handoffs import Receipt
from data_contracts.records import DriftReport
from data_contracts.rules import BudgetWarning
from data_contracts.run_report import RunReport
from infra.audit import now
from infra.orchestrator.api import asking

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


# Events of one id are one event to Prefect's server, so two processes may tell of one end.
_IDS = uuid.UUID("5a0b4c1e-6a35-4c5f-9d0e-0d6c3f0f7d55")
# Also if the clocks of two machines differ: by default the server looks at events before its own time alone.
_EVER = {"since": "2000-01-01T00:00:00Z", "until": "2200-01-01T00:00:00Z"}
# An event with more than 100 related resources is refused.
MOST_PIPELINES = 90
# Followed by the verdict.
ENDED = "trainwright.run."
FAILED = f"{ENDED}failed"
RESUMED = f"{ENDED}resumed"
NOT_RESUMED = f"{ENDED}not_resumed"
HUNG = "trainwright.training.hung"
RESTARTED = "trainwright.training.restarted"
STALLED = f"{ENDED}stalled"
# Of a crash: whether Prefect's server has told people of it (`automations.watch`) before the reaper found it.
TOLD = "trainwright.told"
PROMOTED = "trainwright.model.promoted"
ROLLED_BACK = "trainwright.model.rolled_back"
# By the verdict that each one tells of; all other verdicts change nothing of a model.
MODEL_EVENTS = {
    "promoted": PROMOTED,
    "canary": "trainwright.model.canary",
    "not_promoted": "trainwright.model.not_promoted",
    "waiting": "trainwright.model.waiting",
}
# `MODEL@ALIAS`, by which automations choose.
MODEL_NAME = "trainwright.name"
DRIFTED = "trainwright.data.drifted"
IS_REJECTED = "trainwright.rejected"
OWN_DEPLOYMENT = "trainwright.deployment"
BUDGET_WARNED = "trainwright.budget.warned"
BUDGET_EXCEEDED = "trainwright.budget.exceeded"
# Followed by `page` or `ticket`.
BURNS = "trainwright.objective."
STORE_FULL = "trainwright.store.full"
STORE_DAMAGED = "trainwright.store.damaged"

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


def announce_end(report: RunReport, flow_run: str | None = None) -> bool:
    """Emit the event of a run's verdict, once for each cause of a run; a failure is one warning and False.

    A run that waits may ask again, when what it asked about has changed: each question is a cause of its own.

    Args:
        flow_run: whose page the event names; default: the one that is carried out here.
    """
    cause = (report.error or {}).get("cause", "")
    key = f"{report.run_id}/{cause}/{question_of(report).get('n', '')}"
    payload = {"verdict": report.verdict, "exit_code": report.exit_code, "cause": cause, "trigger": report.trigger}
    message = report_notice(report, page_of(flow_run))
    return _send_of_pipeline(
        ENDED + report.verdict, report.pipeline, {"run_id": report.run_id, **payload, **message}, key
    )


def announce_unopened(pipeline: str, flow_run: str, error: Exception) -> None:
    """Emit the event of a flow run that failed before it had a run; a failure is one warning."""
    message = unopened_notice(pipeline, error, page_of(flow_run))
    _send_of_pipeline(FAILED, pipeline, {"verdict": "failed", **message}, flow_run)


def announce_resumed(
    pipeline: str, run_id: str, n: int, flow_run: str | None, sentence: str, key: str, *, notified: bool = False
) -> None:
    """Emit the event of a crash whose run is resumed; a failure is one warning. `notified`: as TOLD."""
    happened = f"The process that carried out the run {run_id} of {pipeline} died (crash {n + 1} of this run)."
    subject = f"{pipeline}: a crashed run is resumed"
    message = _message(subject, run_id, f"{happened} The run is resumed.", page_of(flow_run))
    _send_of_pipeline(
        RESUMED, pipeline, {"run_id": run_id, "sentence": sentence, **message}, key, {TOLD: str(notified).lower()}
    )


def announce_not_resumed(pipeline: str, run_id: str, flow_run: str | None, sentence: str) -> None:
    """Emit the event of a crash whose run is not resumed by itself; a failure is one warning."""
    happened = f"The process that carried out the run {run_id} of {pipeline} died, and the run is not resumed by itself"
    body = f"{happened}: its budget retry.crashed is used up. To continue it: `trainwright resume {run_id}`."
    message = _message(f"{pipeline}: a crashed run is not resumed", run_id, body, page_of(flow_run))
    _send_of_pipeline(
        NOT_RESUMED, pipeline, {"run_id": run_id, "sentence": sentence, **message}, f"{run_id}/{flow_run}"
    )


def announce_restart(pipeline: str, run_id: str, training: str, generation: int, cause: str) -> None:
    """Emit the event of a generation that failed and is followed by another; a failure is one warning."""
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:  # a stage command, which tells no server anything
        return
    payload = {"run_id": run_id, "generation": generation, "cause": cause}
    subject = "a rank hung" if cause == Hung.cause else "a training was restarted"
    body = f"Generation {generation} of the training ended ({_words(cause)}). Another generation continues it."
    message = _message(f"{pipeline}: {subject}", run_id, body, page_of())
    event = HUNG if cause == Hung.cause else RESTARTED
    _send_of_pipeline(event, pipeline, {**payload, **message}, f"{run_id}/{training}/{generation}")


def announce_stall(pipeline: str, run_id: str, error: StorageUnavailable) -> None:
    """Emit the event of a run that waits because its store takes nothing; a failure is one warning."""
    payload = {"run_id": run_id, "cause": error.cause, "sentence": str(error)}
    body = f"The store of {pipeline} takes no writes: it is full, read-only or away. The run waits for it."
    message = _message(f"{pipeline}: a run waits for its store", run_id, body, page_of())
    _send_of_pipeline(STALLED, pipeline, {**payload, **message}, f"{run_id}/{now()}")


def _send_of_pipeline(
    event: str, pipeline: str, payload: Mapping[str, Any], key: str, labels: Mapping[str, str] | None = None
) -> bool:
    resource = {"prefect.resource.id": pipeline_resource(pipeline), "prefect.resource.name": pipeline}
    return send(event, {**resource, **(labels or {})}, payload, key, pipeline)


def announce_verdict(report: RunReport) -> bool:
    """Emit the event of a run's verdict, if there is one; a failure is one warning and False."""
    event, model = MODEL_EVENTS.get(report.verdict), report.model
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
    resource = _model_resource(model.name, model.alias or "")
    return send(event, resource, payload, f"{report.run_id}/{report.finished}", report.pipeline)


def announce_rollback(receipt: Receipt, by: str, at: datetime) -> None:
    """Emit the event of a rollback, in a process that is connected to a server; StorageUnavailable if it fails.

    Args:
        receipt: of the rollback; it has a ref.
        at: the time of the rollback, which the event has however late it is emitted.
    """
    assert receipt.ref is not None
    message = rollback_notice(f"{receipt.model}@{receipt.alias}", receipt.version, receipt.previous)
    payload = {"version": receipt.version, "previous": receipt.previous, "sentence": receipt.sentence, "actor": by}
    try:
        post(
            ROLLED_BACK, _model_resource(receipt.model, receipt.alias), {**payload, **message}, receipt.ref.seal, at=at
        )
    except Exception as error:
        raise StorageUnavailable(f"Prefect did not take the event {ROLLED_BACK}: {error}") from error


def _model_resource(model: str, alias: str) -> dict[str, str]:
    return {
        "prefect.resource.id": f"trainwright.model.{model}",
        "prefect.resource.name": model,
        "trainwright.alias": alias,
        MODEL_NAME: f"{model}@{alias}",
    }


def announce_drift(pipeline: str, run_id: str, report: DriftReport, rejected: bool) -> None:
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
        **drift_notice(pipeline, run_id, len(report.moved), rejected, page_of()),
    }
    labels = {"prefect.resource.name": pipeline, IS_REJECTED: str(rejected).lower()}
    labels[OWN_DEPLOYMENT] = str(own_deployment.id or "none")  # of a run by hand
    resource = {"prefect.resource.id": pipeline_resource(pipeline), **labels}
    send(DRIFTED, resource, payload, f"{run_id}/{rejected}", pipeline)


def announce_budget(warning: BudgetWarning, pipeline: str) -> None:
    """Emit the event of a warning, in a flow run; a failure is one warning in the log."""
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:  # a stage command, which tells no server anything
        return
    event = BUDGET_EXCEEDED if warning.share >= 1 else BUDGET_WARNED
    resource = {
        "prefect.resource.id": f"trainwright.budget.{warning.budget}",
        "prefect.resource.name": warning.budget,
    }
    used = "is used up" if event == BUDGET_EXCEEDED else f"is used up to {warning.share:.0%}"
    subject = f"{pipeline}: the budget {warning.budget} {used}"  # for people, whom `notify` names
    payload = {**warning.to_json(), "sentence": warning.sentence, "subject": subject}
    key = f"{warning.budget}/{warning.period}/{warning.share}/{warning.limit}"
    send(event, resource, payload, key, pipeline)


def announce_burn(store: str, objective: str, severity: str, sentence: str, day: str, pipelines: Sequence[str]) -> None:
    """Emit the event of an objective's alert, once on each day while it lasts; a failure is one warning.

    Args:
        pipelines: those whose runs count.
    """
    resource = {"prefect.resource.id": f"{BURNS}{objective}", "prefect.resource.name": objective}
    spent = f"The error budget of {objective} in {store} is spent too fast ({sentence})."
    message = {
        "subject": f"{severity}: the objective {objective}",
        "body": f"{spent}\nTo read more: `trainwright slo`.",
    }
    payload = {"store": store, "severity": severity, **message}
    send(f"{BURNS}{severity}", resource, payload, f"{store}/{objective}/{day}", *pipelines)


def announce_full(store: str, used: float, day: str, pipelines: Sequence[str]) -> None:
    """Emit the event of a store that is nearly full, once on each day while it lasts; a failure is one warning.

    Args:
        used: share of its disk.
    """
    resource = {"prefect.resource.id": f"trainwright.store.{store}", "prefect.resource.name": store}
    body = f"The disk of the store {store} is {used:.0%} full. To free space: `trainwright gc --dry-run`."
    payload = {"used": used, "subject": "a store is nearly full", "body": body}
    send(STORE_FULL, resource, payload, f"{store}/{day}", *pipelines)


def announce_damage(store: str, directories: Sequence[str], day: str) -> None:
    """Emit the event of sealed directories that are damaged, once on each day; a failure is one warning."""
    resource = {"prefect.resource.id": f"trainwright.store.{store}", "prefect.resource.name": store}
    body = f"{len(directories)} of the sealed directories in the store {store} are damaged, or cannot be read."
    payload = {"directories": list(directories), "subject": "a store is damaged", "body": _with_page(body, page_of())}
    send(STORE_DAMAGED, resource, payload, f"{store}/{day}")


def report_notice(report: RunReport, page: str | None) -> dict[str, str]:
    """Subject and body about a run's end.

    Args:
        page: address of the run's page; None: unknown.
    """
    about = _about(report)
    return _message(f"{report.pipeline}: {about[0]}", report.run_id, about[1], page)


def sentence_of(report: RunReport) -> str:
    """How a run ended, in fixed sentences that may leave for the public."""
    return _about(report)[1]


def unopened_notice(pipeline: str, error: Exception, page: str | None) -> dict[str, str]:
    """Subject and body about a flow run that failed before it had a run, such as with a spec that cannot be loaded."""
    kind = type(error) if isinstance(error, TrainwrightError) else TrainwrightError
    body = f"A flow run of {pipeline} failed before it began: {_words(kind.cause)} (exit code {kind.exit_code})."
    return {"subject": f"{pipeline}: a run could not begin", "body": _with_page(body, page)}


def drift_notice(pipeline: str, run_id: str, num_columns: int, rejected: bool, page: str | None) -> dict[str, str]:
    """Subject and body about data that differs from earlier data."""
    columns = "1 column differs" if num_columns == 1 else f"{num_columns} columns differ"
    ends = "The run is rejected because of it." if rejected else "The run continues."
    return _message(f"{pipeline}: the data has drifted", run_id, f"{columns} from earlier data. {ends}", page)


def rollback_notice(name: str, version: int | None, previous: int | None) -> dict[str, str]:
    """Subject and body about an alias, `MODEL@ALIAS`, that was moved back."""
    now = "names no version" if version is None else f"names version {version}"
    before = "" if previous is None else f", no longer version {previous}"
    return {"subject": f"{name}: rolled back", "body": f"{name} {now}{before}. Why: `trainwright history {name}`."}


def _about(report: RunReport) -> tuple[str, str]:
    """What a run's end is, as a subject and as sentences."""
    return _OF_VERDICT.get(report.verdict, _other)(report)


def _failed(report: RunReport) -> tuple[str, str]:
    error = from_json(report.error or {})
    stage = next((one.name for one in report.stages if one.status in ("failed", "rejected")), None)
    where = "" if stage is None else f" in {stage}"
    happened = f"The run failed{where}: {_words(error.cause)} (exit code {report.exit_code})."
    return "a run failed", f"{happened} {type(error).default_remedy}".rstrip()


def _rejected(report: RunReport) -> tuple[str, str]:
    found = from_json(report.error or {}).details
    drifted = any(
        one.get("verdict") in ("warning", "critical") for one in (found.get("drift") or {}).get("columns", [])
    )
    why = "broke its contract"
    if drifted:
        why = f"{why} and has drifted from earlier data" if found.get("failures") else "has drifted from earlier data"
    return "the data was rejected", f"The data {why}, so nothing was trained on it."


def _waiting(report: RunReport) -> tuple[str, str]:
    deadline = question_of(report).get("deadline")
    until = "" if deadline is None else f", until {deadline}"
    answer = f"`trainwright approve {report.run_id} --reason WHY`, or `trainwright refuse {report.run_id} --reason WHY`"
    return "a run waits for an approval", f"A person must decide about the promotion{until}: {answer}."


def _not_promoted(report: RunReport) -> tuple[str, str]:
    error = from_json(report.error or {})
    return "a candidate was not promoted", f"The alias stays where it was: {_words(error.cause)}."


def _other(report: RunReport) -> tuple[str, str]:
    return f"a run ended {_words(report.verdict)}", f"The run ended {_words(report.verdict)}."


_OF_VERDICT: Mapping[str, Callable[[RunReport], tuple[str, str]]] = {
    "failed": _failed,
    "rejected": _rejected,
    "waiting": _waiting,
    "not_promoted": _not_promoted,
    "promoted": lambda report: ("a version was promoted", f"{_model(report)} was promoted."),
    "canary": lambda report: ("a canary stands", f"{_model(report)} stands beside the champion as canary."),
}


def question_of(report: RunReport) -> Mapping[str, object]:
    """The question that a run which waits has asked; {} if there is none."""
    details = (report.error or {}).get("details") or {}
    question = details.get("question") if isinstance(details, dict) else None
    return question if isinstance(question, dict) else {}


def _model(report: RunReport) -> str:
    model = report.model
    if model is None or model.version is None:
        return "The candidate"
    return f"Version {model.version} of {model.name}" + (f" (alias {model.alias})" if model.alias else "")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _message(subject: str, run_id: str, body: str, page: str | None) -> dict[str, str]:
    read = f"\nRun: {run_id}. To read more: `trainwright show {run_id}`."
    return {"subject": subject, "body": _with_page(body + read, page)}


def _with_page(body: str, page: str | None) -> str:
    return body if page is None else f"{body}\nPage: {page}"
