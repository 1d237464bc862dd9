"""`reap`: find runs whose process died without a report, and have them resumed."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from data_contracts.errors import TrainwrightError
from flows.commands.guard import Answer, log
from flows.commands.run import run_flow
from flows.connection import connect

if TYPE_CHECKING:
    from tasks.run.reaping import Reaped


def reap(arguments: argparse.Namespace) -> Answer:
    """The `reap` command: as the deployment `reap/POOL` does; without a worker, runs are resumed here, one by one."""
    from tasks.run.run import known_store_list

    stores = known_store_list(arguments.store)
    connect("cli")
    from flows.reap import summary
    from infra.orchestrator.flow_runs.pending_flow_runs import start_pending_again
    from infra.orchestrator.flow_runs.resuming import PrefectResumer
    from tasks.run.reaping import reap_stores

    reaped, away = reap_stores(stores, PrefectResumer(arguments.pool, here=True))
    begun = start_pending_again()
    value: dict[str, Any] = {"runs": [asdict(one) for one in reaped], "away": [error.message for error in away]}
    value["begun"] = begun
    said, worst = summary(reaped, list(away), begun), max((error.exit_code for error in away), default=0)
    for one in reaped:
        if one.what == "here":
            worst = max(worst, _resume(one))
        worst = max(worst, {"left": 5, "lost": 6, "ended": 5}.get(one.what, 0))
    return Answer(said, value, worst)


def _resume(one: Reaped) -> int:
    """Carry out a run in this process; returns its exit code."""
    from flows.retrain import resume

    try:
        report = run_flow(resume, run_id=one.run_id, store=one.store)
    except TrainwrightError as error:
        log.error("%s: %s", one.run_id, error)
        return error.exit_code
    log.info("%s: %s: %s", one.run_id, report.verdict, report.sentence)
    return 0
