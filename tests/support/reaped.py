"""A run whose process may die, and a stand-in for the Prefect server of which a reaper asks."""

from __future__ import annotations

from data_contracts.errors import StorageUnavailable
from data_contracts.executions import Crash, FlowRunState
from data_contracts.messages.commands import Reaped
from data_contracts.run_report import RunReport
from infra.store import Lease, layout
from tasks.run.executions import begin_execution, crashes_of, reap
from tasks.run.run import Run
from tests.support.processes import a_process, identified

PATIENCE_S = 0.5


class Prefect:
    """In place of the server: flow runs with a state, and what was asked for."""

    def __init__(self) -> None:
        self.flow_run = FlowRunState("running", 1)
        self.made: dict[str, FlowRunState] = {}
        self.asked: list[str] = []
        self.released: list[str] = []
        self.ended: list[str] = []
        self.told: list[str] = []
        self.away = False

    def state_of(self, flow_run: str | None, run_id: str) -> FlowRunState:
        return FlowRunState("gone") if flow_run is None else self.flow_run

    def requested(self, crash: Crash, key: str) -> FlowRunState:
        return self.made.get(key, FlowRunState("gone"))

    def resume(self, crash: Crash, store: str, pipeline: str, key: str) -> str | None:
        if self.away:
            raise StorageUnavailable("The Prefect server no longer answers.")
        self.asked.append(key)
        self.made.setdefault(key, FlowRunState("asked"))
        return "a flow run resumes it"

    def release(self, leases: list[str]) -> None:
        self.released += leases

    def end_nodes(self, store: str, training: str) -> None:
        self.ended.append(training)

    def end_cancelled(self, report: RunReport, flow_run: str | None) -> None:
        self.told.append(report.sentence)

    def gave_up(self, run_id: str, pipeline: str, flow_run: str | None, sentence: str) -> None:
        self.told.append(sentence)


class Site:
    """A run of the tiny project, the lease on it, and whoever died over it."""

    def __init__(self, run: Run) -> None:
        self.run, self.store, self.prefect = run, run.store, Prefect()
        self.path = layout.lease(layout.run(run.run_id))

    def begin(self, holder: str = "") -> Lease:
        """A process takes the run's lease and begins."""
        lease = Lease.take(self.store, self.path, holder or f"{self.run.run_id}/x", patience_s=0.01)
        begin_execution(self.run, lease.token)
        return lease

    def dies(self, *, training: str | None = None) -> Lease:
        """A process begins and is killed."""
        with a_process() as process:
            holder = f"{self.run.run_id}/x@{identified(process)}"
            lease = self.begin(holder)
            if training is not None:
                Lease.take(self.store, layout.lease(training), holder)
        return lease

    def reaped(self, patience_s: float = PATIENCE_S) -> list[Reaped]:
        return reap(self.store, self.prefect, patience_s=patience_s)

    @property
    def crashes(self) -> list[Crash]:
        return crashes_of(self.store, self.run.run_id)
