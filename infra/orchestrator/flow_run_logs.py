"""What the process of a flow run logs: to the flow run's log in Prefect, and to a console that may go away."""

from __future__ import annotations

import logging
import os
from typing import Any

from prefect.context import get_run_context
from prefect.exceptions import MissingContextError
from prefect.logging.handlers import APILogHandler, PrefectConsoleHandler
from prefect.settings import get_current_settings

from infra.orchestrator.api import pages
from infra.processes.environment import FLOW_RUN
from infra.telemetry import LOG_FORMAT, JsonFormatter

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
