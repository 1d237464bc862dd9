"""Poll Prefect for the states of a gang's flow runs, in a thread, so that a slow server delays nothing."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from infra.orchestrator.admission import ASK_S, asking

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# Flow runs that Prefect's server returns in one answer by default (PREFECT_API_DEFAULT_LIMIT).
AT_ONCE = 200

log = logging.getLogger("trainwright")


class FlowRunStates:
    """The newest known state of each run; the thread ends with the last run."""

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
        """Stop following a run."""
        with self._lock:
            self._states.pop(run_id, None)

    def state(self, run_id: UUID) -> Any:
        """The newest known state of a run; None if it is not followed."""
        return self._states.get(run_id)

    def look(self) -> None:
        """Query the server now."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        asked = list(self._states)
        runs: list[FlowRun] = []
        with asking() as client:
            for start in range(0, len(asked), AT_ONCE):
                part = asked[start : start + AT_ONCE]
                filtered = FlowRunFilter(id=FlowRunFilterId(any_=part))
                # A server may be configured to return fewer flow runs in one answer than were requested.
                num_read = 0
                while num_read < len(part) and (
                    page := client.read_flow_runs(flow_run_filter=filtered, offset=num_read)
                ):
                    runs += page
                    num_read += len(page)
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
                log.debug("The states of the nodes' flow runs could not be read from Prefect: %s", error)
