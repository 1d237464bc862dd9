"""Shows a run's metrics while it is carried out, as the operator's environment asks for it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator

from data_contracts.errors import UsageError
from data_contracts.run_report import RunReport
from infra.telemetry.settings import METRICS_PORT, METRICS_TOKEN_FILE, MetricsSettings, metrics_settings, metrics_token
from tasks.run.progress import listening
from tasks.run.run import Run
from tasks.telemetry.watched_run import WatchedRun

log = logging.getLogger("trainwright")


def observed(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries a metered run out: its metrics are pulled or pushed meanwhile."""

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        with contextlib.ExitStack() as stack:
            # Settings that are wrong end the run in one of its stages' checks, where it has a report.
            with contextlib.suppress(UsageError):
                if (settings := metrics_settings()).asked:
                    _show(run, settings, stack)
            return work(run)

    return carry_out


def refuse_wrong_settings() -> None:
    """UsageError that names the variable of the environment that is wrong."""
    settings = metrics_settings()
    if settings.ports or METRICS_TOKEN_FILE in os.environ:
        metrics_token()


def _show(run: Run, settings: MetricsSettings, stack: contextlib.ExitStack) -> None:
    watched = WatchedRun(run)
    if settings.ports:
        stack.enter_context(_pulled(run.spec.name, settings, metrics_token(), watched))
    if settings.push:
        from infra.telemetry.push import pushing

        token = metrics_token() if METRICS_TOKEN_FILE in os.environ else None
        stack.enter_context(pushing(settings.push, token, run.spec.name, watched.samples))
    stack.enter_context(listening(watched))


@contextlib.contextmanager
def _pulled(pipeline: str, settings: MetricsSettings, token: str, watched: WatchedRun) -> Iterator[None]:
    from infra.telemetry.endpoint import Endpoint

    try:
        endpoint = Endpoint(settings.address, settings.ports, token, pipeline, watched.samples)
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
