"""Points this process at a Prefect server, before Prefect is imported."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from flows.commands.guard import log
from infra.audit import TRIGGER
from infra.orchestrator.api import NO_ANALYTICS

if TYPE_CHECKING:
    from infra.orchestrator.api import Server

# Prefect's settings for a command that shows its own progress.
QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_ROOT_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
    **NO_ANALYTICS,
}


def connect(trigger: str) -> str:
    """Point this process at the Prefect server (started if necessary) before Prefect is imported; returns its UI.

    A person at a terminal gets a link that signs in; a log file, which others may read, gets only the address.
    """
    from infra.orchestrator.server import ensure_server

    os.environ.update({**QUIET, TRIGGER: trigger})
    server = ensure_server()
    _log_ui(replace(server, started=False))
    return server.ui_url


@functools.cache
def _log_ui(server: Server) -> None:
    """Log the address of a server's pages; once, however many flows a command runs."""
    from infra.orchestrator.server import sign_in_link

    log.info("Prefect UI: %s", sign_in_link(server) if sys.stderr.isatty() else server.ui_url)
