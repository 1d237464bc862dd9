"""A flow run that waits for a person: Prefect suspends it, so that it holds no worker, and its form asks.

Prefect suspends only a flow run that has a deployment. It is given no timeout here: Prefect would end an expired one as
failed without calling our code, and the deadline is the store's to know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from data_contracts.approvals import MOST_NAME, MOST_REASON
from infra.orchestrator.admission import asking
from infra.orchestrator.variables import SIGNED_IN

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

log = logging.getLogger("trainwright")
# Answers that one suspension can have had; Prefect's pages take the first.
_MOST_INPUTS = 100


@dataclass(frozen=True)
class FormAnswer:
    """What a person filled into the form.

    Attributes:
        decision: `approve` or `refuse`.
        signed_in: whether a team's proxy checked who answered, so that `by` is not only stated.
        at: when the server took the form, UTC, ISO 8601.
    """

    decision: str
    reason: str
    by: str
    at: str
    signed_in: bool = False


def deployed_flow_run() -> FlowRun | None:
    """The flow run that this process executes, if it has a deployment and so can be suspended."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        return None
    return context.flow_run


def suspend(flow_run: FlowRun, n: int, page: str) -> None:
    """Suspend this process's flow run with the form of question `n`; raises Prefect's Pause, which ends the flow.

    Args:
        page: Markdown that the form shows above its fields.
    """
    from prefect.flow_runs import suspend_flow_run

    # Prefect suspends once for each key, and the form may have to be shown again.
    suspend_flow_run(wait_for_input=_form(page), key=f"{_key(n)}-{flow_run.run_count}")


def form_answer(flow_run: FlowRun, n: int) -> FormAnswer | None:
    """The newest answer that a person gave in a form of question `n`; None if there is none."""
    prefix = f"suspended-{_key(n)}-"
    with asking(retries=2) as client:
        inputs = client.filter_flow_run_input(flow_run.id, prefix, _MOST_INPUTS, set())
    given = [one for one in inputs if one.key.endswith("-response")]
    if not given:
        return None
    newest = max(given, key=lambda one: one.created or datetime.min.replace(tzinfo=UTC))
    value: dict[str, Any] = newest.decoded_value
    at = (newest.created or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    decision, reason, by = (str(value.get(name, "")) for name in ("decision", "reason", "your_name"))
    return FormAnswer(decision, reason, by.removeprefix(SIGNED_IN), at, by.startswith(SIGNED_IN))


def wake(run_id: str, decision: Literal["approve", "refuse"], reason: str, by: str) -> list[str]:
    """Resume the suspended flow runs of a run, whose answer is in the store already; returns their names.

    The form is filled in with the same answer, because Prefect resumes nothing without it.
    """
    filled = {"decision": decision, "reason": reason, "your_name": by}
    with asking(retries=2) as client:
        return [name for flow_run, name in _suspended(client, run_id) if _resumed(client, flow_run, filled)]


def _suspended(client: SyncPrefectClient, run_id: str) -> Iterator[tuple[UUID, str]]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
    from prefect.client.schemas.filters import FlowRunFilterStateType as OfType
    from prefect.client.schemas.objects import StateType

    wanted = FlowRunFilter(
        name=FlowRunFilterName(like_=run_id), state=FlowRunFilterState(type=OfType(any_=[StateType.PAUSED]))
    )
    for one in client.read_flow_runs(flow_run_filter=wanted):
        if one.deployment_id is not None:
            yield one.id, one.name


def _resumed(client: SyncPrefectClient, flow_run: UUID, filled: dict[str, str]) -> bool:
    """Whether this call resumed it; another may have been faster."""
    from prefect.client.schemas.responses import SetStateStatus

    return client.resume_flow_run(flow_run, run_input=filled).status == SetStateStatus.ACCEPT


def _key(n: int) -> str:
    return f"approval-{n}"


def _form(page: str) -> Any:
    from prefect.input import RunInput
    from pydantic import Field

    class Approval(RunInput):
        decision: Literal["approve", "refuse"] = Field(description="Whether the candidate becomes the champion.")
        reason: str = Field(description="Why; it stays in the alias's history.", min_length=1, max_length=MOST_REASON)
        your_name: str = Field(
            description="Recorded as you state it; behind a team's proxy, the name of your sign-in is recorded.",
            min_length=1,
            max_length=MOST_NAME,
        )

    return Approval.with_initial_data(description=page)
