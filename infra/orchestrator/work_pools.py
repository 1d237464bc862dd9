"""A work pool as the server knows it: whether it exists, and whether its runs are carried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data_contracts.errors import UsageError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


# The pool of `trainwright up`.
POOL = "trainwright"
# Pools whose workers start processes on their own machine; on all others, an image holds the code.
PROCESS = "process"


@dataclass(frozen=True)
class Obstacle:
    """Why runs that should begin do not.

    Attributes:
        name: for programs, such as `pool_paused`.
        remedy: the command that removes it, on this server.
    """

    name: str
    sentence: str
    remedy: str


def find_pool(client: SyncPrefectClient, name: str, field: str | None = None) -> Any:
    """The work pool `name`; UsageError if the server has none of that name.

    Args:
        field: the field of the spec, or the option, that names it, for the message.
    """
    from prefect.exceptions import ObjectNotFound

    try:
        return client.read_work_pool(name)
    except ObjectNotFound:
        sentence = f"this Prefect server has no work pool {name}."
        raise UsageError(
            f"{field}: {sentence}" if field else sentence[0].upper() + sentence[1:],
            remedy=f"Create it with `prefect work-pool create {name} --type process`.",
        ) from None


def lacks_worker(client: SyncPrefectClient, pool: Any) -> bool:
    """Whether a pool's runs wait because none of its workers is online. A push or managed pool needs no worker."""
    if pool.is_push_pool or pool.is_managed_pool:
        return False
    return all(worker.status != "ONLINE" for worker in client.read_workers_for_work_pool(pool.name))


def obstacle_of(client: SyncPrefectClient, pool: Any) -> Obstacle | None:
    """Why none of a pool's runs begins; None if a worker takes them."""
    paused = next((queue.name for queue in client.read_work_queues(work_pool_name=pool.name) if queue.is_paused), None)
    if pool.is_paused:
        sentence = f"The work pool {pool.name} is paused, so its runs wait until it is resumed."
        return Obstacle("pool_paused", sentence, f"Resume it: `prefect work-pool resume {pool.name}`.")
    if pool.concurrency_limit == 0:
        remedy = f"Lift the limit: `prefect work-pool clear-concurrency-limit {pool.name}`."
        return Obstacle("pool_limit", f"The work pool {pool.name} has a limit of 0 runs, so its runs wait.", remedy)
    if paused is not None:
        sentence = f"The queue {paused} of the work pool {pool.name} is paused, so its runs wait until it is resumed."
        remedy = f"Resume it: `prefect work-queue resume {paused} --pool {pool.name}`."
        return Obstacle("queue_paused", sentence, remedy)
    if not lacks_worker(client, pool):
        return None
    here = "`trainwright up` here, or " if pool.name == POOL else ""
    return Obstacle(
        "no_worker",
        f"No worker of the work pool {pool.name} is online, so its runs wait until one is.",
        f"Start one: {here}`{worker_command(pool)}` on the machine that is to execute the runs.",
    )


def worker_command(pool: Any) -> str:
    """The command that starts a worker of a pool in the foreground."""
    return f"{'trainwright worker' if pool.type == PROCESS else 'prefect worker start'} --pool {pool.name}"
