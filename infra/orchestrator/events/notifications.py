"""The automations by which Prefect tells people what `notify` asks for; they are of a pipeline, not of a deployment.

For each block there is one automation for each kind of event, so a block that two rules name sends each message once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from data_contracts.errors import SpecError
from data_contracts.pipeline_spec.operations import Cause, NotifyRule
from infra.orchestrator.events.budget_events import EXCEEDED, WARNED
from infra.orchestrator.events.drift_events import EVENT, REJECTED
from infra.orchestrator.events.events import pipeline_resource
from infra.orchestrator.events.model_events import NAME, ROLLED_BACK
from infra.orchestrator.events.run_events import ENDED, FAILED, HUNG, NOT_RESUMED, RESTARTED, RESUMED, STALLED, TOLD

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
        for trigger in triggers(pipeline, model, causes)
    }
    follow(client, f"trainwright-notify:{pipeline}", f"trainwright: {pipeline}: ", wanted)
    return sorted(wanted)


def follow(client: SyncPrefectClient, tag: str, prefix: str, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Make, change and delete automations until those with this tag and this beginning of a name are the wanted ones.

    Nobody else's automations have both. One that a person paused stays paused.

    Args:
        wanted: the fields of each, by name, as `automation` makes them.
    """
    kept: set[str] = set()
    for one in _existing(client, tag, prefix):
        if one.name not in wanted or one.name in kept:  # two deploys at once may have made it twice
            client.delete_automation(one.id)
            continue
        kept.add(one.name)
        client.update_automation(one.id, _core(one.name, tag, wanted[one.name], one.enabled))
    for name in wanted.keys() - kept:
        client.create_automation(_core(name, tag, wanted[name], True))


def triggers(pipeline: str, model: str, causes: frozenset[Cause]) -> list[Trigger]:
    """What the automations of one block wait for, so that one cause of a run is one message."""
    of_pipeline = {"prefect.resource.id": pipeline_resource(pipeline)}
    found = []
    if events := frozenset(event for cause in causes for event in _RUN_EVENTS.get(cause, ())):
        found.append(Trigger("runs", events, of_pipeline))
    if "crashed" in causes:
        # Where the server told of the flow run's crash at once (`watch.py`), the reaper's message would be the second.
        found.append(Trigger("crashes", frozenset({RESUMED}), {**of_pipeline, TOLD: "false"}))
    if "drift" in causes:
        # A block that gets `rejected` gets no second message when drift was the reason.
        alone = {REJECTED: "false"} if "rejected" in causes else {}
        found.append(Trigger("drift", frozenset({EVENT}), {**of_pipeline, **alone}))
    if "budget" in causes:
        related = {**of_pipeline, "prefect.resource.role": "pipeline"}
        found.append(Trigger("budget", frozenset({WARNED, EXCEEDED}), {}, related))
    if "rolled_back" in causes:
        found.append(Trigger("rollbacks", frozenset({ROLLED_BACK}), {NAME: model}))
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
    offset = 0
    while page := client.read_block_documents(offset=offset, include_secrets=False):
        offset += len(page)
        for one in page:
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

    found: list[Any] = []
    wanted = AutomationFilter(tags=AutomationFilterTags(all_=[tag]))
    while page := client.read_automations(automations=wanted, offset=len(found)):
        found += page
    return [one for one in found if one.name.startswith(prefix)]


def _core(name: str, tag: str, parts: Mapping[str, Any], enabled: bool) -> Any:
    from prefect.events.schemas.automations import AutomationCore

    return AutomationCore(name=name, enabled=enabled, tags=["trainwright", tag], **parts)
