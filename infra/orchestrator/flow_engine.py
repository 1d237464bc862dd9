"""Our flows in Prefect's engine: they begin and end sooner."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

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
