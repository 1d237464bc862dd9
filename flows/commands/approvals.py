"""`approve`, `refuse`: answer the question of a run that waits."""

from __future__ import annotations

import argparse
import os
from typing import Literal

from data_contracts.approvals import Answer as Given
from flows.commands.guard import Answer, log
from flows.commands.run import QUIET
from infra import audit
from infra.approval_signatures import signing_key
from tasks.run.run import reopen_run
from tasks.stages.answers import answer


def approve(arguments: argparse.Namespace) -> Answer:
    """The `approve` command."""
    return _answered(arguments, "approved")


def refuse(arguments: argparse.Namespace) -> Answer:
    """The `refuse` command."""
    return _answered(arguments, "refused")


def _answered(arguments: argparse.Namespace, decision: Literal["approved", "refused"]) -> Answer:
    run = reopen_run(arguments.run, arguments.store)
    key = None if arguments.key is None else signing_key(arguments.key)
    given = answer(run.store, run.run_id, decision, audit.actor(), arguments.reason, key)
    woken = _wake(run.run_id, given)
    then = f"the flow run {woken[0]} continues" if woken else f"`trainwright resume {run.run_id}` continues the run"
    sentence = f'{given.by} {decision} the candidate of the run {run.run_id}: "{given.reason}"; {then}'
    return Answer(sentence, {"run_id": run.run_id, "answer": given.to_json(), "resumed": woken})


def _wake(run_id: str, given: Given) -> list[str]:
    """Resume the run's suspended flow runs in Prefect, if a server answers; the answer itself is in the store."""
    from infra.orchestrator.server import connect_if_running

    os.environ.update(QUIET)
    try:
        if not connect_if_running():
            return []
        from infra.orchestrator.suspension import wake

        decision: Literal["approve", "refuse"] = "approve" if given.decision == "approved" else "refuse"
        return wake(run_id, decision, given.reason, given.by)
    except Exception as error:  # whatever is wrong with the server, the answer counts
        log.warning("The answer is in the store, but Prefect did not resume the run's flow run: %s", error)
        return []
