"""The flow that finds runs whose process died without a report, and has them resumed; its deployment is `reap/POOL`."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from prefect import flow
from prefect.states import Completed, Failed, State

from data_contracts.errors import Interrupted
from data_contracts.messages.commands import Reaped
from data_contracts.quoting import as_sentence
from flows.features import call
from flows.flow_runs import nothing_found
from infra.orchestrator.flow_runs import begin_flow_run_logs
from infra.orchestrator.resuming import start_lost_again
from infra.store import Store
from tasks.run.executions import reap_apart, reap_stores
from tasks.run.run import known_store_list

log = logging.getLogger("trainwright")
_NOTHING = "Every run has a verdict, or a process that lives."


@flow(name="reap", flow_run_name="reap", retries=0)
def reap(store: str | None = None, pool: str = "trainwright") -> State:
    """Look once for dead runs, and have each resumed by a worker, within its budget `retry.crashed`.

    Args:
        store: store to look at; default: those that were used from this machine.
        pool: its workers resume runs that cannot be executed again where they were.
    """
    begin_flow_run_logs()
    stores = known_store_list(store)
    reaped, away = reap_stores(stores, lambda store: reap_apart(store, pool))
    tell_ends(stores)
    sentence = summary(reaped, away, start_lost_again())
    if away or any(one.what in ("left", "lost") for one in reaped):
        return Failed(message=sentence)
    return nothing_found(sentence) if sentence == _NOTHING else Completed(message=sentence)


def tell_ends(stores: Iterable[Store]) -> None:
    """Tell Prefect what it did not take while it was away; what fails again is told by the next look."""
    for store in stores:
        call("reap", store)


def summary(reaped: list[Reaped], away: list[Interrupted], begun: list[str]) -> str:
    """The result of a look, in one line; `begun`: flow runs that were given to workers again."""
    sentences = [one.sentence for one in reaped] + begun + [str(error) for error in away]
    return " ".join(as_sentence(sentence) for sentence in sentences) or _NOTHING
