"""Nodes as flow runs on a Prefect work pool: the launcher `work-pool`.

What Prefect says of a run decides little: a node's own reports in the store come first, and the cancel marker there is
what ends nodes elsewhere. A server that is away is waited for; training goes on meanwhile.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.canonical import digest
from data_contracts.errors import StorageUnavailable, UsageError
from infra.launch.node import STORE_OPTIONS
from infra.orchestrator.api import unreachable
from infra.orchestrator.deployments import ensure_node_deployment
from infra.orchestrator.room import PoolRoom, asking
from infra.orchestrator.watch import Watch
from infra.store import Store, layout

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

# A node that watches its marker has ended long before; one that does not is cut off, and fenced by its token.
END_S = 8.0
# What the marker has not ended by then is cancelled by Prefect, too.
CANCEL_AFTER_S = 2.0
LOG_LINES = 30
# A busy server takes its time to make a run; signals wait for as long. Who asks for it tries again.
START_TIMEOUT_S = 15.0

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class WorkPool:
    """Where a gang's nodes run, and what their runs are given besides.

    Attributes:
        section: of the spec that names it.
        tags: Prefect tags of the runs; labels: of their infrastructure, where the pool has such.
        devices: of a node; asked for as `gpus` where the pool's job template has such a variable.
    """

    name: str
    section: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    workers_timeout_s: float
    devices: int = 1


class PoolGang:
    """Starts the nodes of one training as flow runs; to be made inside the flow run that trains."""

    def __init__(self, store: Store, training: str, pool: WorkPool) -> None:
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        if context is None:
            raise UsageError(
                f"{pool.section}.launcher: a work pool is used through Prefect, which this command does without.",
                remedy=f"Use `trainwright run`, or add `--set {pool.section}.launcher=local --set "
                f"{pool.section}.pool=null`.",
            )
        self.store, self.training, self.pool = store, training, pool
        parent = context.flow_run
        holder = None if parent is None else parent.id
        self.room = PoolRoom(pool.name, pool.workers_timeout_s, section=pool.section, holder=holder)
        self._watch = Watch()
        self._deployment: UUID | None = None
        self._variables: dict[str, Any] = {}
        # When nodes began to be released, and when the last of them was: they end side by side.
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
                        # Credentials are named in there; the worker's own environment has them.
                        "env": {STORE_OPTIONS: json.dumps(dict(self.store.storage_options))},
                    },
                )
                assert not inspect.isawaitable(run), "a task is synchronous"
                # One that ended is of a store that lay here before: the key must not bring it back.
                if run.state is None or not run.state.is_final():
                    return run
                tries += 1

    def released_since(self) -> float:
        """When the release that is going on began: it has one deadline for all nodes."""
        now = time.monotonic()
        if now - self.released > 1.0:
            self._releasing = now
        return self._releasing


class PoolNode:
    """A node as a flow run."""

    def __init__(self, gang: PoolGang, run: FlowRun, generation: int, node: int) -> None:
        self._gang, self._run, self._generation, self._node = gang, run, generation, node

    def ended(self) -> str | None:
        """How Prefect says that the run ended; None while it does not say so."""
        state = self._gang._watch.state(self._run.id)
        return f"ended as {self._said()}" if state is not None and state.is_final() else None

    def told(self) -> str:
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
        except Exception as error:  # a log is for people: without it the failure is still the failure
            return f"{self.told()}; its log cannot be read: {error}"
        return "\n".join([self.told(), *(line.message for line in reversed(lines))])

    def kill(self) -> None:
        """Wait until the node said in the store that it ended, or Prefect that its run did; cancel what waits to start.

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
                    log.warning("%s, and the node has not said that it ended; its token is void.", self.told())
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
            log.warning("The run %s could not be cancelled: %s", self._run.name, error)
        return True

    def _said(self) -> str:
        state = self._gang._watch.state(self._run.id)
        if state is None:
            return "unknown: the Prefect server does not answer"
        return f"{state.name}: {state.message}" if state.message else str(state.name)
