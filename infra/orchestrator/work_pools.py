"""A work pool as the server knows it: whether it exists, and whether a worker carries out its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from data_contracts.errors import UsageError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


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
