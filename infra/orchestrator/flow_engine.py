"""Our flows in Prefect's engine: they begin and end sooner, and outlive the worker that started them."""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from infra.processes.environment import FLOW_RUN

if TYPE_CHECKING:
    from prefect import Flow

P = ParamSpec("P")
R = TypeVar("R")


def without_waits(flow: Flow[P, R]) -> Flow[P, R]:
    """The flow, of texts, numbers and booleans alone, without two waits of Prefect 3.8 that it has no use for.

    Prefect makes parameters into JSON by FastAPI, which takes 0.15 s to import; these are JSON as they are. And a flow
    run that has ended waits for the thread that sends its heartbeats, which looks once a second whether it is to end:
    half a second on average.
    """
    from prefect import flow_engine

    flow.serialize_parameters = dict  # type: ignore[method-assign, assignment]
    if not isinstance(flow_engine._send_heartbeats, functools.partial):
        # The thread is a daemon: no process waits for it, and it sends nothing once the run has ended.
        flow_engine._send_heartbeats = functools.partial(flow_engine._send_heartbeats, join_on_exit=False)
    return flow


def outlive_worker() -> None:
    """Under a worker: let this process go on when the worker, who reads its console, is gone.

    Prefect writes its lines with rich, which ends the process by SystemExit once its pipe is closed.
    """
    if FLOW_RUN not in os.environ:
        return
    from prefect.logging.handlers import PrefectConsoleHandler

    loggers = [logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for logger in loggers:
        for handler in logger.handlers[:]:
            if isinstance(handler, PrefectConsoleHandler):
                plain = logging.StreamHandler(handler.stream)
                plain.setLevel(handler.level)
                plain.setFormatter(handler.formatter)
                logger.removeHandler(handler)
                logger.addHandler(plain)
