"""`reap`: find runs whose process died without a report, and have them resumed."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from data_contracts.errors import NodeLost
from flows.commands.guard import Answer, log
from flows.connection import connect
from infra.processes.processes import marked_env, module_command, new_mark, run_to_end

if TYPE_CHECKING:
    from data_contracts.messages.commands import Reaped


def reap(arguments: argparse.Namespace) -> Answer:
    """The `reap` command: as the deployment `reap/POOL` does; without a worker, runs are resumed here, one by one."""
    from tasks.run.run import known_store_list

    stores = known_store_list(arguments.store)
    connect("cli")
    from flows.reap import summary, tell_ends
    from infra.orchestrator.resuming import start_lost_again
    from tasks.run.executions import reap_apart, reap_stores

    reaped, away = reap_stores(stores, lambda store: reap_apart(store, arguments.pool, here=True))
    tell_ends(stores)
    begun = start_lost_again()
    value: dict[str, Any] = {"runs": [asdict(one) for one in reaped], "away": [error.message for error in away]}
    value["begun"] = begun
    said, worst = summary(reaped, list(away), begun), max((error.exit_code for error in away), default=0)
    for one in reaped:
        if one.what == "here":
            worst = max(worst, _resume(one))
        worst = max(worst, {"left": 5, "lost": 6, "ended": 5}.get(one.what, 0))
    return Answer(said, value, worst)


def _resume(one: Reaped) -> int:
    """Carry out a run in a process of its own, which may die without ending this one; returns its exit code."""
    mark = new_mark()
    command = module_command(
        "infra.processes.tied_to_parent", "flows.cli", "resume", one.run_id, "--quiet", "--store", one.store
    )
    code = run_to_end(command, mark, marked_env(mark), stdout=sys.stderr.buffer)
    if code is None or code < 0:
        how = "does not end" if code is None else f"was ended by {signal.Signals(-code).name}"
        log.error("%s: the process that resumed it %s; it is left for now.", one.run_id, how)
        return NodeLost.exit_code
    return code
