"""Whether the owner of a work pool agrees to game days: the pool's name is in the Prefect variable VARIABLE."""

from __future__ import annotations

from typing import Any

from data_contracts.errors import UsageError
from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.work_pools import find_pool

VARIABLE = "trainwright_gameday"


def agreed(value: Any, pool: str) -> bool:
    """Whether the variable's value, a list of names or one name, has the pool."""
    return pool == value or (isinstance(value, list) and pool in value)


def refuse_without_consent(pool: str) -> None:
    """UsageError if nobody has named the pool in the variable; StorageUnavailable if the server does not answer."""
    try:
        with asking(retries=2) as client:
            find_pool(client, pool, "train.pool")
            variable = client.read_variable_by_name(VARIABLE)
    except Exception as error:
        if away := unreachable(error):
            raise away from error
        raise
    if variable is None or not agreed(variable.value, pool):
        raise UsageError(
            f"train.pool: nobody has agreed to game days on the work pool {pool}.",
            remedy=f"""Whoever owns the pool does so with: prefect variable set {VARIABLE} '["{pool}"]'.""",
        )
