"""`approve`, `refuse`: show the question of a run that waits, and answer it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Literal

from data_contracts.approvals import Answer as Given
from data_contracts.approvals import Question
from data_contracts.errors import Cancelled
from data_contracts.quoting import escaped
from data_contracts.times import readable
from flows.commands.guard import Answer, log
from flows.connection import QUIET
from infra import audit
from infra.approvals import signing_key
from tasks.run.run import reopen_run
from tasks.stages.approval import answer, checked_name, open_question
from tasks.stages.rollback import checked_reason


def approve(arguments: argparse.Namespace) -> Answer:
    """The `approve` command."""
    return _answered(arguments, "approved")


def refuse(arguments: argparse.Namespace) -> Answer:
    """The `refuse` command."""
    return _answered(arguments, "refused")


def _answered(arguments: argparse.Namespace, decision: Literal["approved", "refused"]) -> Answer:
    run = reopen_run(arguments.run, arguments.store)
    by, reason = checked_name(audit.actor()), checked_reason(arguments.reason)
    key = None if arguments.key is None else signing_key(arguments.key)
    question = open_question(run.store, run.run_id)
    _show(question, decision, arguments, signs=key is not None)
    given = answer(run.store, question, decision, by, reason, key)
    woken = _wake(run.run_id, given)
    then = f"the flow run {woken[0]} continues" if woken else f"`trainwright resume {run.run_id}` continues the run"
    sentence = f'{given.by} {decision} the candidate of the run {run.run_id}: "{given.reason}"; {then}'
    return Answer(sentence, {"run_id": run.run_id, "answer": given.to_json(), "resumed": woken})


def _show(question: Question, decision: str, arguments: argparse.Namespace, *, signs: bool) -> None:
    """Print the question; at a terminal, Cancelled unless the person says yes."""
    for line in shown(question):
        print(escaped(line), file=sys.stderr)
    if arguments.yes or arguments.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    does = {"approved": "Approve", "refused": "Refuse"}[decision] + (" and sign" if signs else "")
    print(f"{does} this? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("Nothing was answered.", remedy="")


def shown(question: Question) -> list[str]:
    """What a question is about: the alias, the candidate, the champion, what the gates found, and the deadline."""
    none = "none; it would be the first version"
    champion = none if question.champion is None else f"version {question.champion_version}, id {question.champion.id}"
    return [
        f"The run {question.run_id} of {question.pipeline} asks: may this candidate become {question.name}?",
        f"  candidate  checkpoint {question.candidate.id}",
        f"  champion   {champion}",
        *(f"  gate       {'met' if gate.met else 'NOT MET'}: {gate.sentence}" for gate in question.gates),
        *(["  gates      none"] if not question.gates else []),
        f"  asked      {readable(question.asked)}",
        f"  deadline   {readable(question.deadline)}; without an answer before, it counts as refused",
    ]


def _wake(run_id: str, given: Given) -> list[str]:
    """Resume the run's suspended flow runs in Prefect, if a server answers; the answer itself is in the store."""
    from infra.orchestrator.server import connect_if_running

    os.environ.update(QUIET)
    try:
        if not connect_if_running():
            return []
        from infra.orchestrator.flow_runs import wake

        decision: Literal["approve", "refuse"] = "approve" if given.decision == "approved" else "refuse"
        return wake(run_id, decision, given.reason, given.by)
    except Exception as error:  # whatever is wrong with the server, the answer counts
        log.warning("The answer is in the store, but Prefect did not resume the run's flow run: %s", error)
        return []
