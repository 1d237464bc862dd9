"""The flow run that this process carries out: its log, a cancel in Prefect, a suspension, and a server that is away.

It imports Prefect at once, so only flows import it, and commands that have chosen their server.

A cancel in Prefect's pages is watched for where no worker does so: a command executes the flow run, or its worker died.
A flow run that waits for a person is suspended by Prefect, so that it holds no worker, and Prefect's form asks. Prefect
suspends only a flow run that has a deployment. It is given no timeout here: Prefect would end an expired one as failed
without calling our code, and the deadline is the store's to know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from prefect.context import FlowRunContext, get_run_context
from prefect.exceptions import MissingContextError
from prefect.logging.handlers import APILogHandler, PrefectConsoleHandler
from prefect.settings import get_current_settings

from data_contracts.approvals import MOST_NAME, MOST_REASON
from data_contracts.errors import StorageUnavailable
from infra import stopping
from infra.orchestrator.api import ASK_S, SIGNED_IN, asking, pages, unreachable
from infra.processes.environment import FLOW_RUN
from infra.store.lease import RETRY_S, Outage
from infra.telemetry import LOG_FORMAT, JsonFormatter

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


T = TypeVar("T")
# Of a worker that lives, the signal comes within seconds, and SIGKILL 30 s later.
ORPHAN_ASK_S = 20.0
ORPHAN_GRACE_S = 40.0
# Answers that one suspension can have had; Prefect's pages take the first.
_MOST_INPUTS = 100
# A process has one server. An outage that spans a stage's end, the next stage's begin and the run's end is one outage,
# with one deadline.
_OUTAGE = Outage()

log = logging.getLogger("trainwright")


def begin_flow_run_logs() -> None:
    """Call it first in a flow: its log in Prefect gets the lines that a terminal shows, with links to its pages."""
    _log_to_prefect()
    if FLOW_RUN in os.environ:
        _outlive_worker()


def _log_to_prefect() -> None:
    """Whatever Prefect was configured with: a worker that a person started does not know our logger."""
    for handler in log.handlers[:]:
        if isinstance(handler, APILogHandler):
            log.removeHandler(handler)
    log.addHandler(_FlowRunLog())
    if log.level == logging.NOTSET:  # a command has set its own
        log.setLevel(logging.getLogger("prefect").getEffectiveLevel())


class _FlowRunLog(APILogHandler):
    """Sends the lines to the flow run's log; those of threads, too, where a worker has started this process for it."""

    def prepare(self, record: logging.LogRecord) -> Any:
        """The line for the server."""
        try:
            get_run_context()
        except MissingContextError:
            record.flow_run_id = os.environ.get(FLOW_RUN)
        return super().prepare(record)

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the address of the page that has more, if the record names one (`tasks.run.progress`)."""
        text, key, settings = super().format(record), getattr(record, "artifact", ""), get_current_settings()
        ui_url = settings.ui_url or pages(settings.api.url or "")
        return f"{text}  [{ui_url}/artifacts/key/{key}]" if key and ui_url else text


def _outlive_worker() -> None:
    """Let this process go on when the worker, which reads its console, is gone; and log there in JSON, if asked for.

    Prefect writes its lines with rich, which ends the process by SystemExit once its pipe is closed.
    """
    loggers = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for logger in loggers:
        for handler in logger.handlers[:]:
            if isinstance(handler, PrefectConsoleHandler):
                plain = logging.StreamHandler(handler.stream)
                plain.setLevel(handler.level)
                plain.setFormatter(JsonFormatter() if os.environ.get(LOG_FORMAT) == "json" else handler.formatter)
                logger.removeHandler(handler)
                logger.addHandler(plain)


_stopped_here = threading.Event()


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Within this context, a cancel in Prefect acts as Ctrl-C; under a worker, only if the worker sends no signal."""
    flow_run = _own_flow_run()
    if flow_run is None:
        yield
        return
    run_id, stopped = flow_run.id, threading.Event()
    every_s, grace_s = (ORPHAN_ASK_S, ORPHAN_GRACE_S) if FLOW_RUN in os.environ else (ASK_S, 0.0)
    thread = threading.Thread(target=_watch, args=(run_id, stopped, every_s, grace_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _watch(run_id: UUID, stopped: threading.Event, every_s: float, grace_s: float) -> None:
    # One client for many questions: making one takes more processor time than an answer. An unreachable server cannot
    # cancel; after an error the next question is asked with a new client.
    while not stopped.wait(every_s):
        with contextlib.suppress(Exception), asking() as client:
            while not _is_cancelled(client, run_id):
                if stopped.wait(every_s):
                    return
            if not stopped.wait(grace_s):
                log.info("The run is cancelled in Prefect.")
                stop_this_process()
            return


def stop_this_process() -> None:
    """End what this process carries out, as a person's Ctrl-C does; may be called in any thread.

    Under a worker, it is the signal by which the worker cancels a flow run.
    """
    _stopped_here.set()
    # A script's background job ignores Ctrl-C.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGTERM if ignored or FLOW_RUN in os.environ else signal.SIGINT)


def was_cancelled() -> bool:
    """Whether a signal to this process cancels its flow run; False also if the server does not say so."""
    flow_run = _own_flow_run()
    if _stopped_here.is_set() or flow_run is None:
        return _stopped_here.is_set()
    try:
        with asking(retries=2) as client:
            return _is_cancelled(client, flow_run.id)
    except Exception as error:
        log.warning("It is not known whether this flow run is cancelled, so a reaper decides: %s", error)
        return False


def _is_cancelled(client: SyncPrefectClient, run_id: UUID) -> bool:
    state = client.read_flow_run(run_id).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


@dataclass(frozen=True)
class FormAnswer:
    """What a person filled into the form.

    Attributes:
        decision: `approve` or `refuse`.
        signed_in: whether a team's proxy checked who answered, so that `by` is not only stated.
        at: when the server took the form, UTC, ISO 8601.
    """

    decision: str
    reason: str
    by: str
    at: str
    signed_in: bool = False


def deployed_flow_run() -> FlowRun | None:
    """The flow run that this process executes, if it has a deployment and so can be suspended."""
    flow_run = _own_flow_run()
    return flow_run if flow_run is not None and flow_run.deployment_id is not None else None


def _own_flow_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


def suspend(flow_run: FlowRun, n: int, page: str) -> None:
    """Suspend this process's flow run with the form of question `n`; raises Prefect's Pause, which ends the flow.

    Args:
        page: Markdown that the form shows above its fields.
    """
    from prefect.flow_runs import suspend_flow_run

    # Prefect suspends once for each key, and the form may have to be shown again.
    suspend_flow_run(wait_for_input=_form(page), key=f"{_question_key(n)}-{flow_run.run_count}")


def form_answer(flow_run: FlowRun, n: int) -> FormAnswer | None:
    """The newest answer that a person gave in a form of question `n`; None if there is none."""
    prefix = f"suspended-{_question_key(n)}-"
    with asking(retries=2) as client:
        inputs = client.filter_flow_run_input(flow_run.id, prefix, _MOST_INPUTS, set())
    given = [one for one in inputs if one.key.endswith("-response")]
    if not given:
        return None
    newest = max(given, key=lambda one: one.created or datetime.min.replace(tzinfo=UTC))
    value = newest.decoded_value
    at = (newest.created or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    decision, reason, by = (str(value.get(name, "")) for name in ("decision", "reason", "your_name"))
    return FormAnswer(decision, reason, by.removeprefix(SIGNED_IN), at, by.startswith(SIGNED_IN))


def wake(run_id: str, decision: Literal["approve", "refuse"], reason: str, by: str) -> list[str]:
    """Resume the suspended flow runs of a run, whose answer is in the store already; returns their names.

    The form is filled in with the same answer, because Prefect resumes nothing without it.
    """
    filled = {"decision": decision, "reason": reason, "your_name": by}
    with asking(retries=2) as client:
        return [name for flow_run, name in _suspended(client, run_id) if _resumed(client, flow_run, filled)]


def _suspended(client: SyncPrefectClient, run_id: str) -> Iterator[tuple[UUID, str]]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as OfType
    from prefect.client.schemas.objects import StateType

    wanted = FlowRunFilter(
        name=FlowRunFilterName(like_=run_id), state=FlowRunFilterState(type=OfType(any_=[StateType.PAUSED]))
    )
    for one in client.read_flow_runs(flow_run_filter=wanted):
        if one.deployment_id is not None:
            yield one.id, one.name


def _resumed(client: SyncPrefectClient, flow_run: UUID, filled: dict[str, str]) -> bool:
    """Whether this call resumed it; another may have been faster."""
    from prefect.client.schemas.responses import SetStateStatus

    return client.resume_flow_run(flow_run, run_input=filled).status == SetStateStatus.ACCEPT


def _question_key(n: int) -> str:
    return f"approval-{n}"


def _form(page: str) -> Any:
    from prefect.input import RunInput
    from pydantic import Field

    class Approval(RunInput):
        decision: Literal["approve", "refuse"] = Field(description="Whether the candidate becomes the champion.")
        reason: str = Field(description="Why; it stays in the alias's history.", min_length=1, max_length=MOST_REASON)
        your_name: str = Field(
            description="Recorded as you state it; behind a team's proxy, the name of your sign-in is recorded.",
            min_length=1,
            max_length=MOST_NAME,
        )

    return Approval.with_initial_data(description=page)


def wait_for_server(patience_s: float) -> None:
    """Return once the server answers; StorageUnavailable once it has been away for `patience_s`."""
    _OUTAGE.patience_s = patience_s
    while (away := _why_away()) is not None:
        if _OUTAGE.since is None:
            log.warning("waiting for the Prefect server, at most %g s: %s", patience_s, away.message)
        _OUTAGE.failed(away)
        stopping.check()
        time.sleep(RETRY_S)
    if _OUTAGE.since is not None:
        log.info("the Prefect server answers again after %.0f s", time.monotonic() - _OUTAGE.since)
    _OUTAGE.answered()


def begin_with_server(work: Callable[[], T], has_begun: Callable[[], bool], patience_s: float) -> T:
    """`work()` once the server answers, tried again until it `has_begun`; StorageUnavailable after `patience_s`.

    Prefect asks its server for the slots of a task's tags before the task begins: with one try if nothing listens, and
    for six minutes if the server takes the connection and hangs.
    """
    deadline: float | None = None
    while True:
        wait_for_server(patience_s)
        try:
            return work()
        except Exception as error:
            away = unreachable(error)
            if away is None or has_begun():
                raise
            deadline = deadline or time.monotonic() + patience_s
            if time.monotonic() > deadline:
                raise away from error
            time.sleep(RETRY_S)


def _why_away() -> StorageUnavailable | None:
    """Why the server does not answer; None if it does, also with an error that no waiting mends."""
    try:
        with asking() as client:
            problem = client.api_healthcheck()
    except Exception as error:
        problem = error
    return None if problem is None else unreachable(problem)
