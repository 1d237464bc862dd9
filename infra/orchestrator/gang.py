"""Run a gang's nodes as flow runs on a Prefect work pool: the launcher `work-pool`.

Prefect's states decide little: a node's own reports in the store take precedence, and the cancel marker there ends
nodes elsewhere. If the server is unreachable, this module waits for it, and training continues meanwhile.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.canonical import digest
from data_contracts.errors import StorageUnavailable, UsageError
from infra.gang.rank_files import store_env
from infra.orchestrator.admission import PoolAdmission, asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.deployments.deployments import ensure_node_deployment
from infra.orchestrator.flow_runs.flow_run_states import FlowRunStates
from infra.store import Store, layout

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A node that sees its marker has ended long before. One that cannot is cut off, and fenced by its token.
END_S = 8.0
# After this time without effect of the marker, Prefect cancels the run, too.
CANCEL_AFTER_S = 2.0
LOG_LINES = 30
# A busy server takes long to make a run, and signals wait for as long. The caller retries.
START_TIMEOUT_S = 15.0

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class WorkPool:
    """Where a gang's nodes run, and the settings of their runs.

    Attributes:
        section: section of the spec that names the pool.
        tags: Prefect tags of the runs.
        labels: labels of their infrastructure, if the pool supports labels.
        devices: devices of a node; requested as `gpus` if the pool's job template has such a variable.
    """

    name: str
    section: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    workers_timeout_s: float
    devices: int = 1


class PoolGang:
    """Starts the nodes of one training as flow runs; must be made inside the flow run that trains."""

    def __init__(self, store: Store, training: str, pool: WorkPool) -> None:
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        if context is None:
            raise UsageError(
                f"{pool.section}.launcher: a work pool needs Prefect, which this command does not use.",
                remedy=f"Use `trainwright run`, or add `--set {pool.section}.launcher=local --set "
                f"{pool.section}.pool=null`.",
            )
        self.store, self.training, self.pool = store, training, pool
        parent = context.flow_run
        holder = None if parent is None else parent.id
        self.room = PoolAdmission(
            pool.name, pool.workers_timeout_s, section=pool.section, holder=holder, on_lease=self._note_lease
        )
        self._watch = FlowRunStates()
        self._deployment: UUID | None = None
        self._variables: dict[str, Any] = {}
        # When nodes began to be released, and when the last node was: they end in parallel.
        self._releasing = self.released = -math.inf

    def start(self, generation: int, node: int) -> PoolNode:
        """Start node `node` of a generation as a flow run; StorageUnavailable if the server does not answer."""
        try:
            run = self._create(generation, node)
        except Exception as error:
            away = unreachable(error)
            if away is None:
                raise
            raise away from error
        self._watch.add(run)
        return PoolNode(self, run, generation, node)

    def _create(self, generation: int, node: int) -> FlowRun:
        from prefect.deployments import run_deployment
        from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

        if self._deployment is None:
            with asking() as client:
                pool = client.read_work_pool(self.pool.name)
                self._deployment = ensure_node_deployment(client, self.pool.name, pool.type)
            known = pool.base_job_template.get("variables", {}).get("properties", {})
            self._variables = {"gpus": self.pool.devices} if "gpus" in known else {}
        parameters = {"store": self.store.uri, "training": self.training, "generation": generation, "node": node}
        gang = self.training.rpartition("/")[2]
        name = f"{gang[:12]} g{generation} node {node}"
        key = f"{digest(self.store.uri)[:16]}/{self.training}/g{generation}/{node}"
        tries = 0
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: START_TIMEOUT_S}):
            while True:
                run = run_deployment(
                    self._deployment,
                    parameters=parameters,
                    timeout=0,
                    flow_run_name=name,
                    tags=[*self.pool.tags, f"training:{gang}"],
                    idempotency_key=f"{key}/{tries}" if tries else key,
                    job_variables={
                        **self._variables,
                        "name": name.replace(" ", "-"),
                        "labels": dict(self.pool.labels),
                        # These only name credentials; the worker's own environment has their values.
                        "env": store_env(self.store.storage_options, self.store.pointers),
                    },
                )
                assert not inspect.isawaitable(run), "a task is synchronous"
                # A run that has ended belongs to an earlier store at this address: the key must not bring it back.
                if run.state is None or not run.state.is_final():
                    return run
                tries += 1

    def _note_lease(self, lease: UUID) -> None:
        """Note which lease holds the slots: whoever finds this conductor dead gives them back."""
        with contextlib.suppress(StorageUnavailable):  # then they are free two minutes after the death
            self.store.create_once(layout.slot(self.training, str(lease)), self.pool.name.encode())

    def released_since(self) -> float:
        """When the current release began: it has one deadline for all nodes."""
        now = time.monotonic()
        if now - self.released > 1.0:
            self._releasing = now
        return self._releasing


class PoolNode:
    """A node as a flow run."""

    def __init__(self, gang: PoolGang, run: FlowRun, generation: int, node: int) -> None:
        self._gang, self._run, self._generation, self._node = gang, run, generation, node

    def ended(self) -> str | None:
        """How the run ended according to Prefect; None while it has not ended."""
        state = self._gang._watch.state(self._run.id)
        return f"ended as {self._said()}" if state is not None and state.is_final() else None

    def status(self) -> str:
        """What Prefect says of the run."""
        return f"its run {self._run.name!r} is {self._said()}"

    def log(self) -> str:
        """The end of the run's log in Prefect."""
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
        from prefect.client.schemas.sorting import LogSort

        try:
            with asking() as client:
                chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self._run.id]))
                lines = client.read_logs(chosen, limit=LOG_LINES, sort=LogSort.TIMESTAMP_DESC)
        except Exception as error:  # the log is only for people: a missing log must not hide the failure
            return f"{self.status()}; its log cannot be read: {error}"
        return "\n".join([self.status(), *(line.message for line in reversed(lines))])

    def kill(self) -> None:
        """Wait until the store or Prefect says that the node ended; cancel a run that has not started.

        After END_S the run is left to the fencing token, with a warning.
        """
        since = self._gang.released_since()
        cancelled = False
        try:
            while not self._over():
                state = self._gang._watch.state(self._run.id)
                waits = state is not None and (state.is_scheduled() or state.is_pending())
                if not cancelled and (waits or time.monotonic() > since + CANCEL_AFTER_S):
                    cancelled = self._cancel()
                if time.monotonic() > since + END_S:
                    log.warning(
                        "%s, but the node did not report that it ended; its token is void, so whatever it still "
                        "writes is ignored.",
                        self.status(),
                    )
                    return
                time.sleep(0.1)
        finally:
            self._gang.released = time.monotonic()
            self._gang._watch.forget(self._run.id)

    def _over(self) -> bool:
        if self.ended() is not None:
            return True
        try:
            return self._gang.store.exists(layout.node_exit(self._gang.training, self._generation, self._node))
        except StorageUnavailable:
            return False

    def _cancel(self) -> bool:
        from prefect.states import Cancelling

        try:
            with asking(retries=2) as client:
                client.set_flow_run_state(self._run.id, Cancelling(message="Its generation ended."))
                self._gang._watch.look()
        except Exception as error:
            log.warning("Prefect did not cancel the flow run %s: %s", self._run.name, error)
        return True

    def _said(self) -> str:
        state = self._gang._watch.state(self._run.id)
        if state is None:
            return "unknown: the Prefect server does not answer"
        return f"{state.name}: {state.message}" if state.message else str(state.name)
