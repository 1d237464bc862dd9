"""React to a cancel in Prefect's pages where no worker does: a command executes the flow run, or its worker died."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from infra.orchestrator.admission import ASK_S, asking
from infra.processes.environment import FLOW_RUN

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


# Of a worker that lives, the signal comes within seconds, and SIGKILL 30 s later.
ORPHAN_ASK_S = 20.0
ORPHAN_GRACE_S = 40.0

log = logging.getLogger("trainwright")
_stopped_here = threading.Event()


@contextlib.contextmanager
def cancellable() -> Iterator[None]:
    """Within this context, a cancel in Prefect acts as Ctrl-C; under a worker, only if the worker sends no signal."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    run_id, stopped = context.flow_run.id, threading.Event()
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
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if _stopped_here.is_set() or context is None or context.flow_run is None:
        return _stopped_here.is_set()
    try:
        with asking(retries=2) as client:
            return _is_cancelled(client, context.flow_run.id)
    except Exception as error:
        log.warning("It is not known whether this flow run is cancelled, so a reaper decides: %s", error)
        return False


def _is_cancelled(client: SyncPrefectClient, run_id: UUID) -> bool:
    state = client.read_flow_run(run_id).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())
