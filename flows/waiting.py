"""A run that waits for an approval, as a flow run: suspended with a form, whose answer is then written to the store."""

from __future__ import annotations

import contextlib
import logging

from prefect.exceptions import Pause

from data_contracts.approvals import Answer, Question
from data_contracts.errors import UsageError
from data_contracts.times import readable
from infra import approvals
from infra.orchestrator.artifacts import as_code, as_text
from infra.orchestrator.flow_runs import FormAnswer, deployed_flow_run, form_answer, suspend, wake
from tasks.run.run import Run
from tasks.stages.approval import checked_name, unsigned_counts
from tasks.stages.rollback import checked_reason

log = logging.getLogger("trainwright")
# The text in the form of a run that is to end. Only the store says that a question was superseded, and a writer of a
# store could name any run.
_SUPERSEDED = "superseded by a later run about the same alias"


def take_form_answer(run: Run) -> None:
    """Write what a person answered in this flow run's form into the store, where the first answer counts.

    A form that was answered in time counts even if no worker continued the flow run before the deadline.
    """
    flow_run, question = deployed_flow_run(), approvals.latest_question(run.store, run.run_id)
    if flow_run is None or question is None or approvals.stored_answer(run.store, question) is not None:
        return
    given = form_answer(flow_run, question.n)
    if given is None or given.reason == _SUPERSEDED:
        return
    answer = _answer(run, question, given)
    if answer is not None:
        counts = approvals.give(run.store, question, answer)
        log.info("%s %s the candidate of %s: %s", counts.by, counts.decision, question.name, counts.reason)


def suspend_if_deployed(run: Run) -> None:
    """Suspend this process's flow run until the run's question is answered; returns if it has no deployment.

    Raises:
        Pause: the flow run is suspended, or an answer came meanwhile and it is about to be executed again.
    """
    flow_run, question = deployed_flow_run(), approvals.latest_question(run.store, run.run_id)
    if question is not None:
        end_superseded(run, question)
    if flow_run is None or question is None:
        return
    try:
        suspend(flow_run, question.n, page(run, question))
    except Pause:
        # Whoever answers looks for a suspended flow run after that; one of the two sees the other.
        answer = approvals.answer_to(run.store, question, approvals.time_of(run.store))
        if answer is not None:
            wake(run.run_id, "approve" if answer.decision == "approved" else "refuse", answer.reason, answer.by)
        raise


def end_superseded(run: Run, question: Question) -> None:
    """Let suspended flow runs end whose questions this one superseded; without a server, they end when resumed."""
    for run_id in approvals.superseded_by(run.store, question):
        with contextlib.suppress(Exception):  # whatever is wrong with the server, the question is asked
            wake(run_id, "refuse", _SUPERSEDED, question.run_id)


def page(run: Run, question: Question) -> str:
    """What the form shows: the candidate, the champion, and what the gates found."""
    instead = f" instead of version {question.champion_version}" if question.champion_version else ""
    lines = [
        f"## May this candidate become {as_text(question.name)}{instead}?",
        "",
        # A list, because its lines wrap: the form is narrow, and it cuts tables and long words at its edge.
        *(f"- {'met' if gate.met else '**not met**'}: {as_text(gate.sentence)}" for gate in question.gates),
        "",
        f"Checkpoint {as_code(question.candidate.id[:12])}. This flow run's report has all of the evidence.",
        "",
        f"Run {as_code(question.run_id)} of {as_code(question.pipeline)}. Without an answer before "
        f"{readable(question.deadline)}, it counts as refused.",
    ]
    if not unsigned_counts(run.store, question):
        command = f"trainwright approve {question.run_id} --key FILE --reason WHY"
        lines += ["", f"**Only a signed answer counts here:** {as_code(command)}. This form can only refuse."]
    return "\n".join(lines)


def _answer(run: Run, question: Question, given: FormAnswer) -> Answer | None:
    """The answer to store; None if the form has none that could count."""
    if given.decision == "approve" and not unsigned_counts(run.store, question):
        log.warning("The form approved, but only a signed answer counts for %s: the run waits on.", question.name)
        return None
    try:
        by, reason = checked_name(given.by), checked_reason(given.reason, "reason")
    except UsageError as error:
        log.warning("The form's answer was not taken: %s", error)
        return None
    return Answer(
        question=question.digest,
        decision="approved" if given.decision == "approve" else "refused",
        by=by,
        via="proxy" if given.signed_in else "prefect",
        reason=reason,
        at=given.at,
    )
