"""Admit a gang to a work pool as a whole, through the pool's global concurrency limit if it has one.

The limit has the pool's name and one slot per node (`prefect gcl create POOL --limit N`). Slots are held by a lease
that a thread renews, so the slots of a killed conductor are free once its lease has expired. This is admission only:
the fencing token in the store keeps two generations apart.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.errors import GangIncomplete, UsageError
from infra.orchestrator.api import ASK_S as ASK_S
from infra.orchestrator.api import asking as asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.work_pools import find_pool, lacks_worker, worker_command
from infra.processes.processes import uninterrupted
from infra.store.lease import Outage

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# Longer than a restart of the server takes; longer than a killed conductor's nodes continue.
LEASE_S = 120.0
RENEW_S = 20.0
_LOCKED = 423
_GONE = (404, 410)

log = logging.getLogger("trainwright")


@dataclass
class _Held:
    lease: UUID
    slots: int
    since: float
    renewed: float
    # The server forgot the lease before it expired (the server was restarted), but still counts its slots.
    forgotten: bool = False


class PoolAdmission:
    """Room for the nodes of one gang on the work pool `pool`; implements `infra.gang.node.Room`.

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
        """Ask for room for `nodes` in all; None once it is held, else what is waited for.

        Raises:
            UsageError: the pool does not exist, or will never have room for so many.
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

    def _release(self, client: SyncPrefectClient, held: _Held) -> None:
        if held.forgotten:
            seconds = max(1.0, time.monotonic() - held.since)
            client.release_concurrency_slots([self._pool], held.slots, seconds)
        else:
            client.release_concurrency_slots_with_lease(held.lease)

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
        self._alone = self._alone if self._alone is not None else time.monotonic()
        if time.monotonic() - self._alone > self._workers_timeout_s:
            raise GangIncomplete(
                f"No worker of the work pool {self._pool} was online for {self._workers_timeout_s:g} s.",
                remedy=f"Start one ({worker_command(pool)}), then `trainwright resume`.",
            )
        return True

    def _admitted(self, client: SyncPrefectClient, nodes: int) -> str | None:
        from prefect.exceptions import ObjectNotFound

        missing = nodes - sum(held.slots for held in self._held)
        try:
            limit = client.read_global_concurrency_limit_by_name(self._pool)
        except ObjectNotFound:
            return None
        if missing <= 0 or not limit.active:
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

    def _renew(self, client: SyncPrefectClient, held: _Held) -> None:
        import httpx
        from prefect.exceptions import ObjectNotFound

        try:
            client.renew_concurrency_lease(held.lease, LEASE_S)
            held.renewed = time.monotonic()
            return
        except ObjectNotFound:
            pass
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in _GONE:
                raise
        if time.monotonic() - held.renewed < LEASE_S:
            held.forgotten = True
            return
        # The lease had expired and its slots were freed: another gang may hold them now.
        with self._lock:
            self._held.remove(held)
        if not self._increment(client, held.slots):
            log.warning(
                "The Prefect server was unreachable for so long that the slots of the work pool %s were freed, and "
                "they are no longer free; the gang continues without slots.",
                self._pool,
            )
