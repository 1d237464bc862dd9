"""Hears of a cancel in Prefect's pages where no worker minds the flow run: one that a command carries out itself."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator

from infra.orchestrator.room import ASK_S, asking

log = logging.getLogger("trainwright")


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Inside, a cancel in Prefect is a Ctrl-C; a worker does it with a signal of its own."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None or "PREFECT__FLOW_RUN_ID" in os.environ:
        yield
        return
    run_id, stopped = context.flow_run.id, threading.Event()

    def watch() -> None:
        while not stopped.wait(ASK_S):
            # A server that is away cannot cancel.
            with contextlib.suppress(Exception), asking() as client:
                state = client.read_flow_run(run_id).state
                if state is not None and (state.is_cancelling() or state.is_cancelled()) and not stopped.is_set():
                    log.info("The run is cancelled in Prefect.")
                    # A script's background job ignores Ctrl-C.
                    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                    os.kill(os.getpid(), signal.SIGTERM if ignored else signal.SIGINT)
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
