"""The automations by which Prefect's server tells people what no process of a pool can tell: that it died.

They follow from the tags of the deployments `retrain/NAME`: which blocks `notify` names there, and for what. On the
server there is one automation for each block and kind of event, however many pipelines name the block, so a block gets
each message once. The server cannot tell of its own death: `infra/alerts` has rules for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.pipeline_spec.operations import NotifyRule
from infra.orchestrator.events.events import pipeline_resource
from infra.orchestrator.events.notifications import Trigger, automation, causes_by_block, follow, usable_blocks
from infra.orchestrator.events.store_events import BURNS, FULL
from infra.orchestrator.work_pools import POOL, PROCESS

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

# Tags of a deployment, followed by the pipeline, and by a block with its causes of _OF_STORES. Deployments of earlier
# versions have none, so nobody is told of them until they are deployed again.
_PIPELINE, _NOTIFY = "pipeline:", "notify:"
# What Trainwright runs on each pool by itself.
SYSTEM_FLOWS = ("reap", "day-page", "cost-report", "sensor")
# A worker that is started again, or one of a server that starts, reports within this time.
WITHOUT_WORKER = timedelta(seconds=30)
LATE = timedelta(minutes=10)
# A worker reports a death a second time when the last process that had the flow run's output has ended, which may be
# when the reaper has had the run resumed already.
REPORTED_AGAIN = timedelta(minutes=10)
# The reaper runs every three minutes, and fails each time while a store is away.
REPEATED = timedelta(hours=6)
_TAG = "trainwright-watch"
_OF_STORES = {"page": f"{BURNS}page", "ticket": f"{BURNS}ticket", "store_full": FULL}
# Names alone, and no state's message, which may quote a value of the data.
_NAME, _DEPLOYMENT = "{{ event.resource.name }}", "{{ event.resource_in_role['deployment'].name }}"
# As `work_pools.obstacle_of` has them, for the pool of an event.
_UP = f"{{{{ '`trainwright up`, or ' if event.resource.name == '{POOL}' }}}}"
_WORKER = (
    f"{{{{ 'trainwright worker' if event.resource['prefect.work-pool.type'] == '{PROCESS}' "
    f"else 'prefect worker start' }}}} --pool {_NAME}"
)


@dataclass
class Receiver:
    """What one block is told of, by all deployments together; ids are those of Prefect's resources."""

    causes: set[str] = field(default_factory=set)
    pipelines: set[str] = field(default_factory=set)
    deployments: set[str] = field(default_factory=set)
    system: set[str] = field(default_factory=set)
    pools: set[str] = field(default_factory=set)


def tags(rules: Sequence[NotifyRule]) -> tuple[str, ...]:
    """The tags of a pipeline's deployment that say who is told of what; none if nobody is."""
    causes = {block: ",".join(sorted(wanted & _OF_STORES.keys())) for block, wanted in causes_by_block(rules).items()}
    return tuple(f"{_NOTIFY}{block}:{wanted}".rstrip(":") for block, wanted in causes.items())


def is_watched(client: SyncPrefectClient, deployment: UUID) -> bool:
    """Whether the server tells somebody that a flow run of this deployment crashed."""
    return bool(_tagged(client.read_deployment(deployment), _NOTIFY))


def watch(client: SyncPrefectClient, late: timedelta = LATE) -> list[str]:
    """Make the automations as the deployments' tags ask, change them, and delete the others; returns their names."""
    blocks, receivers = usable_blocks(client), _receivers(client)
    while True:
        wanted = {
            f"trainwright: {block}: {trigger.kind}": automation(block, blocks[block], trigger, "this server")
            for block, receiver in receivers.items()
            if block in blocks
            for trigger in watched(receiver, late)
        }
        follow(client, _TAG, "trainwright: ", wanted)
        before, receivers = receivers, _receivers(client)
        if receivers == before:  # no other deploy has changed a deployment since
            return sorted(wanted)


def watched(receiver: Receiver, late: timedelta = LATE) -> Iterator[Trigger]:
    """What the automations of one block wait for, so that each death is one message."""
    yield Trigger(
        "pools",
        frozenset({"prefect.work-pool.ready"}),
        {"prefect.resource.id": sorted(receiver.pools)},
        subject=f"{_NAME}: no worker is online",
        body=f"No worker of the work pool {_NAME} is online, so its runs, reaper and pages wait. Start one on "
        f"its machine: {_UP}`{_WORKER}`.",
        more=_unless_within(WITHOUT_WORKER, {"prefect.work-pool.not-ready"}),
    )
    yield _of_run(
        receiver,
        "crashes",
        "prefect.flow-run.Crashed",
        "a flow run crashed",
        "crashed: its process died. A run that it began is resumed within minutes, as often as retry.crashed permits",
        {"within": REPORTED_AGAIN, "for_each": {"prefect.resource.id"}},
    )
    yield _of_run(
        receiver,
        "late runs",
        "prefect.flow-run.*",
        "a run is late",
        f"was due {late.total_seconds() / 60:.0f} minutes ago, and no worker has taken it. Look at its work pool",
        # Prefect never calls a run late that waits to be executed again, as one that its worker handed over.
        _unless_within(late, {"prefect.flow-run.Late", "prefect.flow-run.AwaitingRetry"}),
    )
    yield Trigger(
        "Trainwright's own flows",
        frozenset({"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}),
        related=_related(receiver.system),
        subject="{{ event.resource_in_role['flow'].name }}: a flow of Trainwright itself failed",
        body=f"The flow run {_NAME} on the work pool {{{{ event.resource_in_role['work-pool'].name }}}} failed. Its "
        "page in the Prefect UI says why. If it fails again, you are told in six hours.",
        more={"within": REPEATED, "for_each": {"related:deployment:prefect.resource.id"}},
    )
    if events := frozenset(event for cause, event in _OF_STORES.items() if cause in receiver.causes):
        yield Trigger("stores", events, related=_related(receiver.pipelines))


def _of_run(receiver: Receiver, kind: str, event: str, subject: str, happened: str, more: Mapping[str, Any]) -> Trigger:
    """What the server tells a block about one flow run of a pipeline."""
    return Trigger(
        kind,
        frozenset({event}),
        related=_related(receiver.deployments),
        subject=f"{_DEPLOYMENT}: {subject}",
        body=f"The flow run {_NAME} of retrain/{_DEPLOYMENT} {happened}: `trainwright status`.",
        more=more,
    )


def _unless_within(time: timedelta, after: set[str]) -> Mapping[str, Any]:
    """The fields of a trigger that fires if what it expects does not follow in time."""
    from prefect.events.schemas.automations import Posture

    return {"posture": Posture.Proactive, "after": after, "within": time, "for_each": {"prefect.resource.id"}}


def _related(ids: set[str]) -> Mapping[str, Any]:
    """What a trigger asks of one of an event's related resources."""
    return {"prefect.resource.id": sorted(ids)}


def _receivers(client: SyncPrefectClient) -> dict[str, Receiver]:
    """The blocks that the tags of all deployments name."""
    found: dict[str, Receiver] = {}
    system: dict[str, set[str]] = {}
    for one in _deployments(client, SYSTEM_FLOWS):
        system.setdefault(one.work_pool_name, set()).add(f"prefect.deployment.{one.id}")
    for one in _deployments(client, ("retrain",)):
        for named in _tagged(one, _NOTIFY):
            block, _, causes = named.partition(":")
            receiver = found.setdefault(block, Receiver())
            receiver.causes.update(causes.split(","))
            receiver.pipelines.update(map(pipeline_resource, _tagged(one, _PIPELINE)))
            receiver.deployments.add(f"prefect.deployment.{one.id}")
            receiver.system |= system.get(one.work_pool_name, set())
            receiver.pools.add(f"prefect.work-pool.{client.read_work_pool(one.work_pool_name).id}")
    return found


def _tagged(deployment: Any, beginning: str) -> list[str]:
    """What follows a beginning in the tags of a deployment."""
    return [tag.removeprefix(beginning) for tag in deployment.tags if tag.startswith(beginning)]


def _deployments(client: SyncPrefectClient, flows: Sequence[str]) -> list[Any]:
    """All deployments of some flows that are on a work pool."""
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    wanted, found = FlowFilter(name=FlowFilterName(any_=list(flows))), list[Any]()
    while page := client.read_deployments(flow_filter=wanted, offset=len(found)):
        found += page
    return [one for one in found if one.work_pool_name]
