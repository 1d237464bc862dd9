"""The Prefect events about budgets: a share is reached, or the limit is."""

from __future__ import annotations

from data_contracts.rules import BudgetWarning
from infra.orchestrator.events.events import send

WARNED = "trainwright.budget.warned"
EXCEEDED = "trainwright.budget.exceeded"


def budget_resource(name: str) -> str:
    """The id of a budget as a resource of events."""
    return f"trainwright.budget.{name}"


def announce_budget(warning: BudgetWarning, pipeline: str) -> None:
    """Emit the event of a warning, in a flow run; a failure is one warning in the log."""
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:  # a stage command, which tells no server anything
        return
    event = EXCEEDED if warning.share >= 1 else WARNED
    resource = {"prefect.resource.id": budget_resource(warning.budget), "prefect.resource.name": warning.budget}
    used = "is used up" if event == EXCEEDED else f"is used up to {warning.share:.0%}"
    subject = f"{pipeline}: the budget {warning.budget} {used}"  # for people, whom `notify` names
    payload = {**warning.to_json(), "sentence": warning.sentence, "subject": subject}
    key = f"{warning.budget}/{warning.period}/{warning.share}/{warning.limit}"
    send(event, resource, payload, key, pipeline)
