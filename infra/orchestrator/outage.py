"""Waits for a Prefect server that is away: between the stages of a run, and at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from data_contracts.errors import StorageUnavailable
from infra import stopping
from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable
from infra.store.lease import RETRY_S, Outage

# A process has one server. An outage that spans a stage's end, the next stage's begin and the run's end is one outage,
# with one deadline.
_OUTAGE = Outage()

T = TypeVar("T")

log = logging.getLogger("trainwright")


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
