"""The automations in Prefect: they tell people what `notify` asks for, and start pipelines' deployments.

`tell_people` makes those of a pipeline: for each block there is one automation for each kind of event, so a block that
two rules name sends each message once. `watch` makes those of the server, by which it tells people what no process of a
pool can tell: that it died. They follow from the tags of the deployments `retrain/NAME`: which blocks `notify` names
there, and for what. There is one automation for each block and kind of event, however many pipelines name the block.
The server cannot tell of its own death: `infra/alerts` has rules for that. The last one starts a deployment when its
data has drifted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.errors import SpecError
from data_contracts.pipeline_spec.operations import Cause, NotifyRule
from infra.orchestrator.api import every_page
from infra.orchestrator.deployments import POOL, PROCESS
from infra.orchestrator.events import (
    BUDGET_EXCEEDED,
    BUDGET_WARNED,
    BURNS,
    DRIFTED,
    ENDED,
    FAILED,
    HUNG,
    IS_REJECTED,
    MODEL_NAME,
    NOT_RESUMED,
    OWN_DEPLOYMENT,
    RESTARTED,
    RESUMED,
    ROLLED_BACK,
    STALLED,
    STORE_FULL,
    TOLD,
    pipeline_resource,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


# By the cause that they tell of. Other causes are of a kind of event with one cause alone.
_RUN_EVENTS: Mapping[Cause, tuple[str, ...]] = {
    "failed": (FAILED, NOT_RESUMED),
    "rejected": (f"{ENDED}rejected",),
    "waiting": (f"{ENDED}waiting",),
    "not_resumed": (NOT_RESUMED,),
    "hung": (HUNG,),
    "restarted": (HUNG, RESTARTED),
    "stalled": (STALLED,),
    "not_promoted": (f"{ENDED}not_promoted",),
    "promoted": (f"{ENDED}promoted",),
    "canary": (f"{ENDED}canary",),
}
# Of blocks that are called with a body of one's own; all others can notify.
_WEBHOOK = "webhook"
_NOTIFIES = "notify"
# Prefect fills these in; a text from an event's payload is not a template again.
_SUBJECT = "{{ event.payload.subject or event.event }}"
_BODY = "{{ event.payload.body or event.payload.sentence or event.event }}"
# Tags of a deployment, followed by the pipeline, and by a block with its causes of _OF_STORES. Deployments of earlier
# versions have none, so nobody is told of them until they are deployed again.
_PIPELINE, _NOTIFY = "pipeline:", "notify:"
# What Trainwright runs on each pool by itself.
SYSTEM_FLOWS = ("reap", "day-page", "sensor", "upkeep")
# A worker that is started again, or one of a server that starts, reports within this time.
WITHOUT_WORKER = timedelta(seconds=30)
LATE = timedelta(minutes=10)
# A worker reports a death a second time when the last process that had the flow run's output has ended, which may be
# when the reaper has had the run resumed already.
REPORTED_AGAIN = timedelta(minutes=10)
# The reaper runs every three minutes, and fails each time while a store is away.
REPEATED = timedelta(hours=6)
_WATCH_TAG = "trainwright-watch"
_OF_STORES = {"page": f"{BURNS}page", "ticket": f"{BURNS}ticket", "store_full": STORE_FULL}
# Names alone, and no state's message, which may quote a value of the data.
_NAME, _DEPLOYMENT = "{{ event.resource.name }}", "{{ event.resource_in_role['deployment'].name }}"
# As `deployments.obstacle_of` has them, for the pool of an event.
_UP = f"{{{{ '`trainwright up`, or ' if event.resource.name == '{POOL}' }}}}"
_WORKER = (
    f"{{{{ 'trainwright worker' if event.resource['prefect.work-pool.type'] == '{PROCESS}' "
    f"else 'prefect worker start' }}}} --pool {_NAME}"
)
# The run that the automation starts trains on the data that was rejected, so no event can follow from it.
ACCEPTS = "contract.drift.fail_on=never"


@dataclass(frozen=True)
class Trigger:
    """What one automation waits for.

    Attributes:
        kind: the word that tells it from the others of its block.
        events: any of these.
        match: labels of the event's resource, and their values.
        related: labels of a resource that the event names as related.
        subject, body: templates of the message; default: what the event's payload says.
        more: further fields of Prefect's trigger; default: each of the events is a message at once.
    """

    kind: str
    events: frozenset[str]
    match: Mapping[str, Any] = field(default_factory=dict)
    related: Mapping[str, Any] = field(default_factory=dict)
    subject: str = _SUBJECT
    body: str = _BODY
    more: Mapping[str, Any] = field(default_factory=dict)


def find_blocks(client: SyncPrefectClient, rules: Sequence[NotifyRule]) -> dict[str, UUID]:
    """The ids of the rules' blocks, by `type/name`; SpecError if one does not exist or cannot tell anything."""
    if not rules:
        return {}
    usable = usable_blocks(client)
    for n, rule in enumerate(rules):
        if rule.block not in usable:
            have = f"It has {', '.join(sorted(usable))}." if usable else "It has none that can notify."
            raise SpecError(
                f"notify.{n}.block: the Prefect server has no block {rule.block} that can notify. {have}",
                remedy=f"Make it on the page Blocks of the Prefect UI, or name another one; {client.api_url} is asked.",
            )
    return {rule.block: usable[rule.block] for rule in rules}


def tell_people(
    client: SyncPrefectClient, pipeline: str, model: str, rules: Sequence[NotifyRule], blocks: Mapping[str, UUID]
) -> list[str]:
    """Make the pipeline's automations as the rules ask, change them, and delete those that are no longer asked for.

    An automation that a person paused stays paused.

    Args:
        model: what the pipeline promotes, `MODEL@ALIAS`.
        blocks: as `find_blocks` found them.

    Returns:
        The names of the automations that are there now.
    """
    wanted = {
        f"trainwright: {pipeline}: {block}: {trigger.kind}": automation(block, blocks[block], trigger, pipeline)
        for block, causes in causes_by_block(rules).items()
        for trigger in notify_triggers(pipeline, model, causes)
    }
    follow(client, f"trainwright-notify:{pipeline}", f"trainwright: {pipeline}: ", wanted)
    return sorted(wanted)


def follow(client: SyncPrefectClient, tag: str, prefix: str, automations: Mapping[str, Mapping[str, Any]]) -> None:
    """Make, change and delete automations until those with this tag and this beginning of a name are the wanted ones.

    Nobody else's automations have both. One that a person paused stays paused.

    Args:
        automations: the fields of each, by name, as `automation` makes them.
    """
    kept: set[str] = set()
    for existing in _existing(client, tag, prefix):
        if existing.name not in automations or existing.name in kept:  # two deploys at once may have made it twice
            client.delete_automation(existing.id)
            continue
        kept.add(existing.name)
        client.update_automation(existing.id, _core(existing.name, tag, automations[existing.name], existing.enabled))
    for name in automations.keys() - kept:
        client.create_automation(_core(name, tag, automations[name], True))


def notify_triggers(pipeline: str, model: str, causes: frozenset[Cause]) -> list[Trigger]:
    """What the automations of one block wait for, so that one cause of a run is one message."""
    of_pipeline = {"prefect.resource.id": pipeline_resource(pipeline)}
    found = []
    if events := frozenset(event for cause in causes for event in _RUN_EVENTS.get(cause, ())):
        found.append(Trigger("runs", events, of_pipeline))
    if "crashed" in causes:
        # Where the server told of the flow run's crash at once (`watch`), the reaper's message would be the second.
        found.append(Trigger("crashes", frozenset({RESUMED}), {**of_pipeline, TOLD: "false"}))
    if "drift" in causes:
        # A block that gets `rejected` gets no second message when drift was the reason.
        alone = {IS_REJECTED: "false"} if "rejected" in causes else {}
        found.append(Trigger("drift", frozenset({DRIFTED}), {**of_pipeline, **alone}))
    if "budget" in causes:
        related = {**of_pipeline, "prefect.resource.role": "pipeline"}
        found.append(Trigger("budget", frozenset({BUDGET_WARNED, BUDGET_EXCEEDED}), {}, related))
    if "rolled_back" in causes:
        found.append(Trigger("rollbacks", frozenset({ROLLED_BACK}), {MODEL_NAME: model}))
    return found


def causes_by_block(rules: Sequence[NotifyRule]) -> dict[str, frozenset[Cause]]:
    """The causes of all rules of each block."""
    causes: dict[str, frozenset[Cause]] = {}
    for rule in rules:
        causes[rule.block] = causes.get(rule.block, frozenset()) | set(rule.on)
    return causes


def usable_blocks(client: SyncPrefectClient) -> dict[str, UUID]:
    """The ids of the server's blocks that can tell people something, by `type/name`."""
    found: dict[str, UUID] = {}
    for one in every_page(lambda offset: client.read_block_documents(offset=offset, include_secrets=False)):
        if one.name is None or one.block_type is None or one.block_schema is None:
            continue
        if _NOTIFIES in one.block_schema.capabilities or one.block_type.slug == _WEBHOOK:
            found[f"{one.block_type.slug}/{one.name}"] = one.id
    return found


def automation(block: str, document: UUID, trigger: Trigger, about: str) -> dict[str, Any]:
    """The fields of an automation that tells a block what its trigger waits for.

    Args:
        document: the block's id.
        about: what it is about, in its description.
    """
    from prefect.events.actions import CallWebhook, SendNotification
    from prefect.events.schemas.automations import EventTrigger, Posture

    action: CallWebhook | SendNotification
    if block.partition("/")[0] == _WEBHOOK:
        action = CallWebhook(block_document_id=document, payload=_json(trigger))
    else:
        action = SendNotification(block_document_id=document, subject=trigger.subject, body=trigger.body)
    fields = {
        "expect": set(trigger.events),
        "match": dict(trigger.match),
        "match_related": dict(trigger.related),
        "posture": Posture.Reactive,
        "threshold": 1,
        **trigger.more,
    }
    description = f"Tells {block} about {trigger.kind} of {about}; `trainwright deploy` makes it."
    return {"description": description, "trigger": EventTrigger(**fields), "actions": [action]}


def _json(trigger: Trigger) -> str:
    """The template of the body of a webhook's request."""
    texts = f"{{% set subject %}}{trigger.subject}{{% endset %}}{{% set body %}}{trigger.body}{{% endset %}}"
    fields = {"event": "event.event", "subject": "subject", "body": "body", "run_id": "(event.payload.run_id or none)"}
    return texts + "{" + ", ".join(f'"{name}": {{{{ {value} | tojson }}}}' for name, value in fields.items()) + "}"


def _existing(client: SyncPrefectClient, tag: str, prefix: str) -> list[Any]:
    from prefect.events.filters import AutomationFilter, AutomationFilterTags

    wanted = AutomationFilter(tags=AutomationFilterTags(all_=[tag]))
    found = every_page(lambda offset: client.read_automations(automations=wanted, offset=offset))
    return [one for one in found if one.name.startswith(prefix)]


def _core(name: str, tag: str, parts: Mapping[str, Any], enabled: bool) -> Any:
    from prefect.events.schemas.automations import AutomationCore

    return AutomationCore(name=name, enabled=enabled, tags=["trainwright", tag], **parts)


@dataclass
class Receiver:
    """What one block is told of, by all deployments together; ids are those of Prefect's resources."""

    causes: set[str] = field(default_factory=set)
    pipelines: set[str] = field(default_factory=set)
    deployments: set[str] = field(default_factory=set)
    system: set[str] = field(default_factory=set)
    pools: set[str] = field(default_factory=set)


def notify_tags(rules: Sequence[NotifyRule]) -> tuple[str, ...]:
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
            for trigger in watch_triggers(receiver, late)
        }
        follow(client, _WATCH_TAG, "trainwright: ", wanted)
        before, receivers = receivers, _receivers(client)
        if receivers == before:  # no other deploy has changed a deployment since
            return sorted(wanted)


def watch_triggers(receiver: Receiver, late: timedelta = LATE) -> Iterator[Trigger]:
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

    wanted = FlowFilter(name=FlowFilterName(any_=list(flows)))
    found = every_page(lambda offset: client.read_deployments(flow_filter=wanted, offset=offset))
    return [one for one in found if one.work_pool_name]


def retrain_when_drifted(client: SyncPrefectClient, deployment: str, pipeline: str) -> str:
    """Make the automation, or change it: if drift rejects a run of the deployment, another one accepts the data.

    Runs by hand and runs of other deployments start nothing: their settings may be others.

    Args:
        deployment: its name, `retrain/NAME`.

    Returns:
        The automation's name.
    """
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    known = client.read_deployment_by_name(deployment)
    settings = shlex.split(str(known.parameters.get("set") or ""))
    parameters = {"set": shlex.join([*settings, ACCEPTS])}
    name = _drift_automation(deployment)
    wanted = AutomationCore(
        name=name,
        description=f"Retrains on data that {deployment} rejected because of drift.",
        trigger=EventTrigger(
            expect={DRIFTED},
            match={
                "prefect.resource.id": pipeline_resource(pipeline),
                IS_REJECTED: "true",
                OWN_DEPLOYMENT: str(known.id),
            },
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[RunDeployment(deployment_id=known.id, parameters=parameters)],
    )
    if existing := client.read_automations_by_name(name):
        client.update_automation(existing[0].id, wanted)
    else:
        client.create_automation(wanted)
    return name


def stop_retraining(client: SyncPrefectClient, deployment: str) -> str | None:
    """Delete the automation that an earlier deploy made; returns its name, or None if there is none."""
    from prefect.events.schemas.automations import EventTrigger

    name, deleted = _drift_automation(deployment), False
    for one in client.read_automations_by_name(name):
        if isinstance(one.trigger, EventTrigger) and DRIFTED in one.trigger.expect:
            client.delete_automation(one.id)
            deleted = True
    return name if deleted else None


def _drift_automation(deployment: str) -> str:
    return f"{deployment} when its data drifted"
