"""Run a gang's nodes as flow runs on a Prefect work pool: the launcher `work-pool`.

Prefect's states decide little: what a node says to its conductor takes precedence, and a cancel marker ends nodes
elsewhere. If the server is unreachable, this module waits for it, and training continues meanwhile.

A gang is admitted as a whole, through the pool's global concurrency limit if it has one. The limit has the pool's name
and one slot per node (`prefect gcl create POOL --limit N`). Slots are held by a lease that a thread renews, so the
slots of a killed conductor are free once its lease has expired. This is admission only: the fencing token in the store
keeps two generations apart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.canonical import digest
from data_contracts.errors import Cancelled, GangIncomplete, NodeLost, StorageUnavailable, UsageError
from data_contracts.messages.gang import Launch
from infra.gang.hub import Ended, Hub
from infra.gang.membership import Membership, Placement
from infra.gang.node import own_address
from infra.gang.rank_files import store_env
from infra.orchestrator.api import API_URL, ASK_S, MOST_ITEMS, asking, if_there, unreachable, unreachable_is_unavailable
from infra.orchestrator.deployments import ensure_node_deployment, find_pool, lacks_worker, worker_command
from infra.processes.processes import uninterrupted
from infra.store import Store, layout
from infra.store.lease import Outage

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, WorkQueue


# A node that sees its marker has ended long before. One that cannot is cut off, and fenced by its token.
END_S = 8.0
# After a look at the states of all runs, this many times as long passes: for a thousand, a server needs seconds.
PAUSE_TIMES = 4
# After this time without effect of the marker, Prefect cancels the run, too.
CANCEL_AFTER_S = 2.0
LOG_LINES = 30
# A busy server takes long to make a run, and signals wait for as long. The caller retries.
START_TIMEOUT_S = 15.0
# The most runs that Prefect's API creates with one request.
MOST_CREATED = 100
# Longer than a restart of the server takes; longer than a killed conductor's nodes continue.
LEASE_S = 120.0
RENEW_S = 20.0
# Job variables that a spec cannot set: the launcher does.
_OURS = ("name", "labels", "env")
_LOCKED = 423
_GONE = (404, 410)
_SECRET_BLOCK = "trainwright-launches"

log = logging.getLogger("trainwright")


class PoolLauncher:
    """Starts the nodes of one training as flow runs; must be made inside the flow run that trains.

    Attributes:
        address: at which the pool's workers reach this process.
        slots: admit the nodes of a generation.
    """

    def __init__(self, store: Store, training: str, placement: Placement) -> None:
        from prefect.context import FlowRunContext

        context = FlowRunContext.get()
        if context is None:
            raise UsageError(
                f"{placement.section}.launcher: a work pool needs Prefect, which this command does not use.",
                remedy=f"Use `trainwright run`, or add `--set {placement.section}.launcher=local --set "
                f"{placement.section}.pool=null`.",
            )
        self.store, self.training, self.placement = store, training, placement
        self.address = own_address(servers(store.storage_options))
        self._flow_run = None if context.flow_run is None else context.flow_run.id
        self.slots = PoolAdmission(
            placement.pool,
            placement.timeout_s,
            queue=placement.queue,
            section=placement.section,
            holder=self._flow_run,
            on_lease=self._note_lease,
        )
        self._deployment: UUID | None = None
        self._variables: dict[str, object] = {}

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> PoolNodes:
        """The nodes of a generation."""
        return PoolNodes(self, launch, hub)

    def create(self, generation: int, nodes: Sequence[int]) -> dict[int, FlowRun]:
        """Create the flow runs of at most MOST_CREATED nodes, or find those that were created before."""
        with asking(timeout_s=START_TIMEOUT_S) as client:
            if self._deployment is None:
                pool = client.read_work_pool(self.placement.pool)
                self._deployment = ensure_node_deployment(client, self.placement.pool, pool.type)
                known = pool.base_job_template.get("variables", {}).get("properties", {})
                self._refuse_unknown([name for name in known if name not in _OURS])
                gpus = {"gpus": self.placement.devices} if "gpus" in known else {}
                self._variables = {**gpus, **self.placement.job_variables}
            parent = self._parent(client, generation)
            made: dict[int, FlowRun] = {}
            tries = 0
            while missing := [node for node in nodes if node not in made]:
                asked = [self._asked(generation, node, tries, parent) for node in missing]
                path: Any = f"/deployments/{self._deployment}/create_flow_run/bulk"
                results = client.request("POST", path, json=asked).raise_for_status().json()["results"]
                for refused in (one for one in results if one["flow_run_id"] is None):
                    raise UsageError(f"Prefect takes no flow run of the node deployment: {refused['error']}")
                numbers = {UUID(one["flow_run_id"]): node for one, node in zip(results, missing, strict=True)}
                # A run that has ended belongs to an earlier store at this address: the key must not bring it back.
                runs = read_runs(client, list(numbers))
                made |= {numbers[run.id]: run for run in runs if run.state is None or not run.state.is_final()}
                tries += 1
        return made

    def _refuse_unknown(self, known: Sequence[str]) -> None:
        """UsageError for a job variable that the pool's template does not have: Prefect would pass over it."""
        for name in self.placement.job_variables:
            if name not in known:
                raise UsageError(
                    f"{self.placement.section}.job_variables.{name}: the job template of the work pool "
                    f"{self.placement.pool} has no variable of this name that can be set here.",
                    remedy=f"It has {', '.join(known)}.",
                )

    def _parent(self, client: SyncPrefectClient, generation: int) -> UUID | None:
        """The task run below which Prefect's pages show the nodes of a generation."""
        from prefect import Task

        if self._flow_run is None:
            return None
        nodes = Task(fn=lambda: None, name="nodes")
        return client.create_task_run(nodes, self._flow_run, f"{self.training}-g{generation}", name=f"g{generation}").id

    def _asked(self, generation: int, node: int, tries: int, parent: UUID | None) -> dict[str, object]:
        """A node's flow run, as Prefect's API is asked for it."""
        gang = self.training.rpartition("/")[2]
        name = f"{gang[:12]} g{generation} node {node}"
        key = f"{digest(self.store.uri)[:16]}/{self.training}/g{generation}/{node}"
        return {
            "name": name,
            "parameters": {
                "store": self.store.uri, "training": self.training, "generation": generation, "node": node,
            },
            # The server would check the schema itself, too, again for each run.
            "enforce_parameter_schema": False,
            "tags": [*self.placement.tags, f"training:{gang}"],
            "idempotency_key": f"{key}/{tries}" if tries else key,
            "parent_task_run_id": None if parent is None else str(parent),
            "work_queue_name": self.placement.queue,
            "job_variables": {
                **self._variables,
                "name": name.replace(" ", "-"),
                "labels": dict(self.placement.labels),
                # These only name credentials; the worker's own environment has their values.
                "env": store_env(self.store.storage_options, self.store.pointers),
            },
        }  # fmt: skip

    def _note_lease(self, lease: UUID) -> None:
        """Note which lease holds the slots: whoever finds this conductor dead gives them back."""
        with contextlib.suppress(StorageUnavailable):  # then they are free two minutes after the death
            self.store.create_once(layout.slot(self.training, str(lease)), self.placement.pool.encode())


class PoolNodes(Membership):
    """The nodes of a generation as flow runs."""

    def __init__(self, launcher: PoolLauncher, launch: Launch, hub: Hub) -> None:
        super().__init__(launcher.store, launch, hub)
        self._launcher = launcher
        self.runs: dict[int, FlowRun] = {}
        self._watch = FlowRunStates()

    def start(self, nodes: Collection[int]) -> None:
        """Create their flow runs, many with each request; StorageUnavailable if the server does not answer."""
        missing = [node for node in nodes if node not in self.runs]
        try:
            for first in range(0, len(missing), MOST_CREATED):
                # A signal in between would leave a run that nobody knows.
                with uninterrupted(), unreachable_is_unavailable():
                    part = missing[first : first + MOST_CREATED]
                    self.runs |= self._launcher.create(self.launch.generation, part)
        finally:
            # Not before: looks at their states would hold up a server that is creating runs.
            for node in missing:
                if node in self.runs:
                    self._watch.add(self.runs[node])

    def ended(self) -> Mapping[int, Ended]:
        """Those whose runs have ended according to Prefect, when it was last asked."""
        return {
            number: Ended(f"ended as {self._said(number)}", Cancelled if self._is_cancelled(number) else NodeLost)
            for number in self.runs
            if self._is_over(number)
        }

    def status(self, node: int) -> str:
        """What Prefect says of the run."""
        return f"its run {self.runs[node].name!r} is {self._said(node)}" if node in self.runs else ""

    def log(self, node: int) -> str:
        """The end of the run's log in Prefect."""
        from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
        from prefect.client.schemas.sorting import LogSort

        if node not in self.runs:
            return ""
        try:
            with asking() as client:
                chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self.runs[node].id]))
                lines = client.read_logs(chosen, limit=LOG_LINES, sort=LogSort.TIMESTAMP_DESC)
        except Exception as error:  # the log is only for people: a missing log must not hide the failure
            return f"{self.status(node)}; its log cannot be read: {error}"
        return "\n".join([self.status(node), *(line.message for line in reversed(lines))])

    def end(self, nodes: Collection[int]) -> None:
        """Wait until the nodes or Prefect say that they ended; cancel the runs that have not started.

        After END_S the rest is left to the fencing token, with a warning.
        """
        began, cancelled = time.monotonic(), set[int]()
        left = [node for node in nodes if node in self.runs]
        while left := [node for node in left if not (node in self.hub.left or self._is_over(node))]:
            late_s = time.monotonic() - began
            for node in left:
                state = self._watch.state(self.runs[node].id)
                waits = state is not None and (state.is_scheduled() or state.is_pending())
                if node not in cancelled and (waits or late_s > CANCEL_AFTER_S):
                    cancelled.add(node)
                    self._cancel(node)
            if late_s > END_S:
                for node in left:
                    log.warning(
                        "%s, but the node did not report that it ended; its token is void, so whatever it still "
                        "writes is ignored.",
                        self.status(node),
                    )
                break
            time.sleep(0.1)
        for node in nodes:
            if node in self.runs:
                self._watch.forget(self.runs[node].id)

    def _is_over(self, node: int) -> bool:
        state = self._watch.state(self.runs[node].id)
        return state is not None and state.is_final()

    def _is_cancelled(self, node: int) -> bool:
        state = self._watch.state(self.runs[node].id)
        return state is not None and state.is_cancelled()

    def _cancel(self, node: int) -> None:
        from prefect.states import Cancelling

        try:
            with asking(retries=2) as client:
                client.set_flow_run_state(self.runs[node].id, Cancelling(message="Its generation ended."))
                self._watch.look()
        except Exception as error:
            log.warning("Prefect did not cancel the flow run %s: %s", self.runs[node].name, error)

    def _said(self, node: int) -> str:
        state = self._watch.state(self.runs[node].id)
        if state is None:
            return "unknown: the Prefect server does not answer"
        return f"{state.name}: {state.message}" if state.message else str(state.name)


def read_runs(client: SyncPrefectClient, numbers: Sequence[UUID]) -> list[FlowRun]:
    """The flow runs with these ids, of which the server may not have all."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    runs: list[FlowRun] = []
    for start in range(0, len(numbers), MOST_ITEMS):
        part = list(numbers[start : start + MOST_ITEMS])
        filtered = FlowRunFilter(id=FlowRunFilterId(any_=part))
        # A server may be configured to return fewer flow runs in one answer than were requested.
        num_read = 0
        while num_read < len(part) and (page := client.read_flow_runs(flow_run_filter=filtered, offset=num_read)):
            runs += page
            num_read += len(page)
    return runs


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
        with asking() as client:
            runs = read_runs(client, list(self._states))
        with self._lock:
            self._states.update({run.id: run.state for run in runs if run.id in self._states})

    def _follow(self) -> None:
        pause_s = ASK_S
        while True:
            time.sleep(pause_s)
            with self._lock:
                if not self._states:
                    self._thread = None
                    return
            began, pause_s = time.monotonic(), ASK_S
            try:
                self.look()
                pause_s = max(ASK_S, PAUSE_TIMES * (time.monotonic() - began))
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
    """Slots for the nodes of one gang on the work pool `pool`; implements `infra.gang.membership.SlotReservation`.

    Args:
        workers_timeout_s: how long to wait for a worker to come online.
        queue: of the pool; None: its default queue.
        section: section of the spec that names the pool, for messages.
        holder: the flow run that holds the slots, as Prefect's pages show it; None: not shown.
        on_lease: called with the id of each lease in Prefect that slots are held by.
    """

    def __init__(
        self,
        pool: str,
        workers_timeout_s: float,
        *,
        queue: str | None = None,
        section: str = "train",
        holder: UUID | None = None,
        on_lease: Callable[[UUID], None] = lambda _: None,
    ) -> None:
        self._section, self._on_lease = section, on_lease
        self._pool, self._queue, self._workers_timeout_s, self._holder = pool, queue, workers_timeout_s, holder
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
        queue = self._read_queue(client)
        what = "the default queue" if self._queue is None else f"the queue {self._queue}"
        self._fits(nodes, queue.concurrency_limit, f"the concurrency limit of {what} of {self._pool}")
        if pool.is_paused or (self._queue is None and queue.is_paused):
            return f"the work pool {self._pool} is paused; resume it: prefect work-pool resume {self._pool}"
        if queue.is_paused:
            resume = f"prefect work-queue resume {self._queue} --pool {self._pool}"
            return f"the queue {self._queue} of the work pool {self._pool} is paused; resume it: {resume}"
        if self._waits_for_worker(client, pool):
            return f"no worker of the work pool {self._pool} is online; start one: {worker_command(pool)}"
        return self._admitted(client, nodes)

    def _read_queue(self, client: SyncPrefectClient) -> WorkQueue:
        from prefect.exceptions import ObjectNotFound

        try:
            return client.read_work_queue_by_name(self._queue or "default", self._pool)
        except ObjectNotFound:
            raise UsageError(
                f"{self._section}.queue: the work pool {self._pool} has no queue {self._queue!r}.",
                remedy=f"Create it: prefect work-queue create {self._queue} --pool {self._pool}",
            ) from None

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


def servers(store_options: Mapping[str, Any]) -> list[str]:
    """URLs of what the conductor and the nodes of a gang both reach: the Prefect server, and the store's endpoint."""
    endpoint = store_options.get("endpoint_url") or store_options.get("client_kwargs", {}).get("endpoint_url", "")
    return [os.environ.get(API_URL, ""), str(endpoint)]


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
