"""Run a gang's nodes as flow runs on a Prefect work pool: the launcher `work-pool`.

Prefect's states decide little: a node's own reports in the store take precedence, and the cancel marker there ends
nodes elsewhere. If the server is unreachable, this module waits for it, and training continues meanwhile.

A gang is admitted as a whole, through the pool's global concurrency limit if it has one. The limit has the pool's name
and one slot per node (`prefect gcl create POOL --limit N`). Slots are held by a lease that a thread renews, so the
slots of a killed conductor are free once its lease has expired. This is admission only: the fencing token in the store
keeps two generations apart.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.canonical import digest
from data_contracts.errors import GangIncomplete, StorageUnavailable, UsageError
from infra.gang.rank_files import store_env
from infra.orchestrator.api import ASK_S, MOST_ITEMS, asking, if_there, unreachable, unreachable_is_unavailable
from infra.orchestrator.deployments import ensure_node_deployment, find_pool, lacks_worker, worker_command
from infra.processes.processes import uninterrupted
from infra.store import Store, layout
from infra.store.lease import Outage

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


# A node that sees its marker has ended long before. One that cannot is cut off, and fenced by its token.
END_S = 8.0
# After this time without effect of the marker, Prefect cancels the run, too.
CANCEL_AFTER_S = 2.0
LOG_LINES = 30
# A busy server takes long to make a run, and signals wait for as long. The caller retries.
START_TIMEOUT_S = 15.0
# Longer than a restart of the server takes; longer than a killed conductor's nodes continue.
LEASE_S = 120.0
RENEW_S = 20.0
_LOCKED = 423
_GONE = (404, 410)
_SECRET_BLOCK = "trainwright-launches"

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
        self.slots = PoolAdmission(
            pool.name, pool.workers_timeout_s, section=pool.section, holder=holder, on_lease=self._note_lease
        )
        self._watch = FlowRunStates()
        self._deployment: UUID | None = None
        self._variables: dict[str, int] = {}
        # When nodes began to be released, and when the last node was: they end in parallel.
        self._releasing = self.released = -math.inf

    def start(self, generation: int, node: int) -> PoolNode:
        """Start node `node` of a generation as a flow run; StorageUnavailable if the server does not answer."""
        with unreachable_is_unavailable():
            run = self._create(generation, node)
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

    def runs_here(self) -> bool:
        """Always False: its worker may be anywhere."""
        return False

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
            for start in range(0, len(asked), MOST_ITEMS):
                part = asked[start : start + MOST_ITEMS]
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


@dataclass
class _Held:
    lease: UUID
    slots: int
    since: float
    renewed: float
    # The server forgot the lease before it expired (the server was restarted), but still counts its slots.
    forgotten: bool = False


class PoolAdmission:
    """Slots for the nodes of one gang on the work pool `pool`; implements `infra.gang.node.SlotReservation`.

    Args:
        workers_timeout_s: how long to wait for a worker to come online.
        section: section of the spec that names the pool, for messages.
        holder: the flow run that holds the slots, as Prefect's pages show it; None: not shown.
        on_lease: called with the id of each lease in Prefect that slots are held by.
    """

    def __init__(
        self,
        pool: str,
        workers_timeout_s: float,
        *,
        section: str = "train",
        holder: UUID | None = None,
        on_lease: Callable[[UUID], None] = lambda _: None,
    ) -> None:
        self._section, self._on_lease = section, on_lease
        self._pool, self._workers_timeout_s, self._holder = pool, workers_timeout_s, holder
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._outage = Outage()
        self._alone: float | None = None
        self._next = 0.0
        self._said = ""

    def take(self, nodes: int) -> str | None:
        """Ask for slots for `nodes` in all; None once it is held, else what is waited for.

        Raises:
            UsageError: the pool does not exist, or will never have so many slots.
            GangIncomplete: no worker came online.
            StorageUnavailable: the server has been unreachable for too long.
        """
        if time.monotonic() < self._next:
            return self._said
        try:
            with asking() as client:
                waits = self._ask(client, nodes)
        except Exception as error:
            away = unreachable(error)
            if away is None:
                raise
            self._outage.failed(away)
            waits = f"waiting: {away.message}"
        else:
            self._outage.answered()
        if waits is not None:
            self._next, self._said = time.monotonic() + ASK_S, waits
        return waits

    def give_back(self) -> None:
        """Give all slots back. Raises nothing: slots that cannot be returned now are free once their lease expires."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if not self._held:
            return
        try:
            with asking(retries=2) as client:
                for held in self._held:
                    self._release(client, held)
        except Exception as error:
            log.warning(
                "The slots of the work pool %s could not be given back; they are free once their lease expires: %s",
                self._pool,
                error,
            )
        self._held.clear()

    def _release(self, client: SyncPrefectClient, reservation: _Held) -> None:
        if reservation.forgotten:
            seconds = max(1.0, time.monotonic() - reservation.since)
            client.release_concurrency_slots([self._pool], reservation.slots, seconds)
        else:
            client.release_concurrency_slots_with_lease(reservation.lease)

    def _ask(self, client: SyncPrefectClient, nodes: int) -> str | None:
        pool = find_pool(client, self._pool, f"{self._section}.pool")
        self._fits(nodes, pool.concurrency_limit, f"the concurrency limit of the work pool {self._pool}")
        queue = client.read_work_queue_by_name("default", self._pool)
        self._fits(nodes, queue.concurrency_limit, f"the concurrency limit of the default queue of {self._pool}")
        if pool.is_paused or queue.is_paused:
            return f"the work pool {self._pool} is paused; resume it: prefect work-pool resume {self._pool}"
        if self._waits_for_worker(client, pool):
            return f"no worker of the work pool {self._pool} is online; start one: {worker_command(pool)}"
        return self._admitted(client, nodes)

    def _fits(self, nodes: int, limit: int | None, what: str) -> None:
        if limit is not None and limit < nodes:
            raise UsageError(
                f"{self._section}.pool: {nodes} nodes can never run at once, because {what} is {limit}.",
                remedy="Raise the limit, or ask for fewer nodes.",
            )

    def _waits_for_worker(self, client: SyncPrefectClient, pool: Any) -> bool:
        """Whether no worker is online; GangIncomplete once there has been none for too long."""
        if not lacks_worker(client, pool):
            self._alone = None
            return False
        now = time.monotonic()
        self._alone = now if self._alone is None else self._alone
        if now - self._alone > self._workers_timeout_s:
            raise GangIncomplete(
                f"No worker of the work pool {self._pool} was online for {self._workers_timeout_s:g} s.",
                remedy=f"Start one ({worker_command(pool)}), then `trainwright resume`.",
            )
        return True

    def _admitted(self, client: SyncPrefectClient, nodes: int) -> str | None:
        missing = nodes - sum(held.slots for held in self._held)
        limit = if_there(lambda: client.read_global_concurrency_limit_by_name(self._pool))
        if missing <= 0 or limit is None or not limit.active:
            return None
        self._fits(nodes, limit.limit, f"the global concurrency limit {self._pool}")
        if self._increment(client, missing):
            return None
        free = max(0, limit.limit - limit.active_slots)
        return f"{missing} of the {limit.limit} slots of {self._pool} are needed at once, and {free} are free"

    def _increment(self, client: SyncPrefectClient, slots: int) -> bool:
        """Take slots, all or none."""
        import httpx
        from prefect.client.schemas.objects import ConcurrencyLeaseHolder

        holder = None if self._holder is None else ConcurrencyLeaseHolder(type="flow_run", id=self._holder)
        # A signal between the answer and the append would leave slots taken until their lease expires.
        with uninterrupted():
            try:
                answer = client.increment_concurrency_slots_with_lease(
                    [self._pool], slots, "concurrency", LEASE_S, holder
                )
            except httpx.HTTPStatusError as error:
                if error.response.status_code == _LOCKED:
                    return False
                raise
            now, lease = time.monotonic(), UUID(answer.json()["lease_id"])
            with self._lock:
                self._held.append(_Held(lease, slots, now, now))
            self._on_lease(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_until_stopped, daemon=True)
                self._thread.start()
        return True

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(RENEW_S):
            with self._lock:
                leases = [held for held in self._held if not held.forgotten]
            # An unreachable server does not end training; the leases outlast its restart.
            with contextlib.suppress(Exception), asking() as client:
                for held in leases:
                    self._renew(client, held)

    def _renew(self, client: SyncPrefectClient, reservation: _Held) -> None:
        import httpx
        from prefect.exceptions import ObjectNotFound

        try:
            client.renew_concurrency_lease(reservation.lease, LEASE_S)
            reservation.renewed = time.monotonic()
            return
        except ObjectNotFound:
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in _GONE:
                raise
        if time.monotonic() - reservation.renewed < LEASE_S:
            reservation.forgotten = True
            return
        # The lease had expired and its slots were freed: another gang may hold them now.
        with self._lock:
            self._held.remove(reservation)
        if not self._increment(client, reservation.slots):
            log.warning(
                "The Prefect server was unreachable for so long that the slots of the work pool %s were freed, and "
                "they are no longer free; the gang continues without slots.",
                self._pool,
            )


def launch_secret() -> bytes | None:
    """The secret of the Prefect server that runs this flow, made if there is none; None outside of a flow run.

    StorageUnavailable if the server does not answer.
    """
    # A command that does not use Prefect does not import it either.
    context = sys.modules.get("prefect.context")
    if context is None or context.FlowRunContext.get() is None:
        return None
    from prefect.blocks.system import Secret
    from prefect.exceptions import ObjectNotFound

    while True:
        try:
            with asking(retries=2) as client:
                return bytes.fromhex(client.read_block_document_by_name(_SECRET_BLOCK, "secret").data["value"])
        except ObjectNotFound:
            # Another process may have made it since.
            with contextlib.suppress(ValueError):
                Secret(value=secrets.token_hex(32)).save(_SECRET_BLOCK)
