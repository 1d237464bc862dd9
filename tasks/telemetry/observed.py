"""Shows a run's metrics and sends its trace while it is carried out, as the operator's environment asks for it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator

from data_contracts.errors import UsageError
from data_contracts.executions import HERE
from data_contracts.run_report import RunReport
from infra.metrics import Common
from infra.telemetry import begin_json_logs, json_asked
from infra.traces import (
    METRICS_PORT,
    METRICS_TOKEN_FILE,
    MetricsSettings,
    check_otlp,
    metrics_settings,
    metrics_token,
    traces_asked,
)
from tasks.run.progress import listening
from tasks.run.run import Run
from tasks.telemetry.traced_run import TracedRun
from tasks.telemetry.watched_run import WatchedRun, earlier_processes

log = logging.getLogger("trainwright")


def observed(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries a metered run out: its metrics and its trace can be seen meanwhile."""

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        with contextlib.ExitStack() as stack:
            report: RunReport | None = None
            begin_json_logs(log.name, pipeline=run.spec.name, run=run.run_id)
            # Settings that are wrong end the run in its own checks, where it has a report.
            with contextlib.suppress(UsageError):
                if (settings := metrics_settings()).is_wanted:
                    _show(run, settings, stack)
                check_otlp()
                if traces_asked():
                    trace = stack.enter_context(_traced(run))
                    stack.callback(lambda: trace.end(report))
            report = work(run)
            return report

    return carry_out


def refuse_wrong_settings() -> None:
    """UsageError that names the variable of the environment that is wrong."""
    json_asked()
    check_otlp()
    settings = metrics_settings()
    if settings.ports or METRICS_TOKEN_FILE in os.environ:
        metrics_token()


def _show(run: Run, settings: MetricsSettings, stack: contextlib.ExitStack) -> None:
    watched, common = WatchedRun(run, earlier=earlier_processes(run)), _common(run)
    if settings.ports:
        stack.enter_context(_pulled(common, settings, metrics_token(), watched))
    if settings.push:
        from infra.metrics import pushing

        token = metrics_token() if METRICS_TOKEN_FILE in os.environ else None
        stack.enter_context(pushing(settings.push, token, common, watched.samples))
    stack.enter_context(listening(watched))


def _common(run: Run) -> Common:
    """The labels of all samples. Nodes that are processes of this machine are in the pool of its worker, if any."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    flow_run = None if context is None else context.flow_run
    pool, queue = getattr(flow_run, "work_pool_name", None), getattr(flow_run, "work_queue_name", None)
    return {"pipeline": run.spec.name, "pool": run.spec.train.pool or pool or HERE, "queue": queue or ""}


@contextlib.contextmanager
def _traced(run: Run) -> Iterator[TracedRun]:
    from infra.traces import Spans

    spans = Spans()
    trace = TracedRun(run, spans)
    try:
        with listening(trace):
            yield trace
    finally:
        spans.close()


@contextlib.contextmanager
def _pulled(common: Common, settings: MetricsSettings, token: str, watched: WatchedRun) -> Iterator[None]:
    from infra.metrics import Endpoint

    try:
        endpoint = Endpoint(settings.address, settings.ports, token, common, watched.samples)
    except OSError as error:
        log.warning(
            "No metrics are shown: no port of %s is free on %s (%s); the run continues.",
            METRICS_PORT,
            settings.address,
            error.strerror or error,
        )
        yield
        return
    log.info("metrics: http://%s:%d/metrics", settings.address, endpoint.port)
    try:
        yield
    finally:
        endpoint.close()
