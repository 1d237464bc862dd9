"""What Prefect says of the flow runs of a gang, asked in a thread, so that a slow server holds nothing up."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from infra.orchestrator.room import ASK_S, asking

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

log = logging.getLogger("trainwright")


class Watch:
    """The newest known state of each run; the thread ends with the last one."""

    def __init__(self) -> None:
        self._states: dict[UUID, Any] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, run: FlowRun) -> None:
        """Follow a run."""
        with self._lock:
            self._states[run.id] = run.state
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._follow, daemon=True)
                self._thread.start()

    def forget(self, run_id: UUID) -> None:
        """Follow it no longer."""
        with self._lock:
            self._states.pop(run_id, None)

    def state(self, run_id: UUID) -> Any:
        """The newest state known."""
        return self._states.get(run_id)

    def look(self) -> None:
        """Ask now."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        asked = list(self._states)
        with asking() as client:
            runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=asked)))
        with self._lock:
            self._states.update({run.id: run.state for run in runs if run.id in self._states})

    def _follow(self) -> None:
        while True:
            time.sleep(ASK_S)
            with self._lock:
                if not self._states:
                    self._thread = None
                    return
            try:
                self.look()
            except Exception as error:
                log.debug("The Prefect server does not say how the nodes' runs are: %s", error)
