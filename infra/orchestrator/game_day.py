"""Game days on a work pool: whether its owner agrees to them, and what a killed conductor leaves on the server.

The owner agrees by naming the pool in the Prefect variable VARIABLE.
"""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

from data_contracts.errors import StorageUnavailable, UsageError
from infra.orchestrator.admission import asking
from infra.orchestrator.api import unreachable
from infra.orchestrator.flow_runs.resuming import PrefectResumer
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


def end_dead_conductor(pool: str, flow_run: str, store: str, training: str, leases: list[str]) -> None:
    """What the reaper does for a dead run: free the slots of its gang, and end the flow runs that nobody ends now.

    Args:
        flow_run: the conductor's, "" if it had none yet; leases: the concurrency leases that it took.
    """
    from prefect.states import Crashed

    # Without an answer, slots are free two minutes later, and waiting nodes are fenced.
    with contextlib.suppress(StorageUnavailable):
        resumer = PrefectResumer(pool)
        resumer.release(leases)
        resumer.end_nodes(store, training)
    with contextlib.suppress(Exception), asking(retries=1) as client:
        client.set_flow_run_state(UUID(flow_run), Crashed(message="A game day killed its process."), force=True)
