"""Each way in which a night can fail, as docs/notifications.md lists them: who is told, once, and by which rule."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args
from uuid import uuid4

import pytest
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent, RelatedResource, Resource
from prefect.server.utilities.user_templates import render_user_template_sync

from data_contracts.pipeline_spec.operations import Cause, NotifyRule
from infra.orchestrator import automations, events
from infra.orchestrator.automations import Trigger, automation, find_blocks, notify_triggers, tell_people
from infra.orchestrator.deployments import POOL as POOL_OF_UP
from infra.orchestrator.deployments import worker_command
from tests.support.views import rules
from tests.unit.infra.orchestrator.test_notifications import PAGER, TEAM, Server, rule

ROOT = Path(__file__).parents[4]
POOL, RUNS, REAPER = (f"prefect.{kind}.{uuid4()}" for kind in ("work-pool", "deployment", "deployment"))
PIPELINE = {"prefect.resource.id": "trainwright.pipeline.sales"}
OF_RUNS, OF_REAPER = {"deployment": RUNS, "work-pool": POOL}, {"deployment": REAPER, "work-pool": POOL}
ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)


def event(name: str, resource: dict[str, str] | None = None, **related: str) -> ReceivedEvent:
    """An event as the server takes it, of a flow run by default."""
    labels = resource or {"prefect.resource.id": f"prefect.flow-run.{uuid4()}", "prefect.resource.name": "a-run"}
    named = [
        RelatedResource({"prefect.resource.id": one, "prefect.resource.role": role, "prefect.resource.name": role})
        for role, one in related.items()
    ]
    return ReceivedEvent(
        occurred=datetime.now(UTC), event=name, resource=Resource(labels), related=named, payload={}, id=uuid4()
    )


def of_run(name: str, **labels: str) -> ReceivedEvent:
    return event(name, {**PIPELINE, **labels})


# What the server gets when it happens, by what the table says of it.
HAPPENS: dict[str, ReceivedEvent | None] = {
    "a run, by its data, module, spec or machine": of_run(events.FAILED),
    "the data, by its contract": of_run("trainwright.run.rejected"),
    "the process of a deployed run": event("prefect.flow-run.Crashed", **OF_RUNS),
    "the process of a run that": of_run(events.RESUMED, **{events.TOLD: "false"}),
    "a run whose process died too often": of_run(events.NOT_RESUMED),
    "a worker or its machine": event("prefect.work-pool.not-ready", {"prefect.resource.id": POOL}),
    "a pool that takes no runs": event("prefect.flow-run.Late", **OF_RUNS),
    "the reaper, the day's page": event("prefect.flow-run.Crashed", **OF_REAPER),
    "a store's [upkeep]": event("prefect.flow-run.Failed", **OF_REAPER),
    "a rank, which hangs": of_run(events.HUNG),
    "a node, or another rank": of_run(events.RESTARTED),
    "a checkpoint that cannot be saved": of_run(events.RESTARTED),
    "a store that takes no writes": of_run(events.STALLED),
    "an objective, fast": event(f"{events.BURNS}page", pipeline=PIPELINE["prefect.resource.id"]),
    "an objective, slowly": event(f"{events.BURNS}ticket", pipeline=PIPELINE["prefect.resource.id"]),
    "a store in a folder": event(events.STORE_FULL, pipeline=PIPELINE["prefect.resource.id"]),
    "a store that does not answer": event("prefect.flow-run.Failed", **OF_REAPER),
    "the Prefect server": None,
    "a block whose address": None,
}


def rows() -> list[tuple[str, ...]]:
    page = (ROOT / "docs" / "notifications.md").read_text().partition("## What fails, and who hears of it")[2]
    return [found for found in ROW.findall(page) if not found[0].startswith(("what", "---"))]


def messages(causes: frozenset[Cause], happens: ReceivedEvent) -> list[str]:
    """The kinds of the automations of one block with these causes that tell people of an event."""
    receiver = automations.Receiver(set(causes), {PIPELINE["prefect.resource.id"]}, {RUNS}, {REAPER}, {POOL})
    found: list[Trigger] = [*notify_triggers("sales", "sales@champion", causes), *automations.watch_triggers(receiver)]
    return [one.kind for one in found if _tells(one, happens)]


def _tells(trigger: Trigger, happens: ReceivedEvent) -> bool:
    made = automation(PAGER, uuid4(), trigger, "a test")["trigger"]
    server = EventTrigger.model_validate(made.model_dump(mode="json", exclude={"id"}))
    begins = server.starts_after if server.after else server.expects
    return server.covers(happens) and begins(happens.event)


def test_the_table_has_each_way_once() -> None:
    named = [what for what, *_ in rows()]
    assert [next((way for way in HAPPENS if what.startswith(way)), what) for what in named] == list(HAPPENS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_who_is_told(row: tuple[str, ...]) -> None:
    what, told, _, alert = row
    happens = next(event for way, event in HAPPENS.items() if what.startswith(way))
    if alert:
        assert alert.strip("`") in {rule["alert"] for rule in rules()}
    named = set(re.findall(r"`(\w+)`", told))
    assert named <= set(get_args(Cause))
    assert bool(named) + ("every block" in told) + ("nobody" in told) == 1
    if happens is None:
        assert told == "nobody"
        return
    for cause in get_args(Cause):
        hears = cause in named or told == "every block"
        assert len(messages(frozenset({cause}), happens)) == hears, cause
    assert len(messages(frozenset(get_args(Cause)), happens)) == 1, "a block with all causes hears it once"


def test_a_run_that_waits_to_be_executed_again_may_be_late() -> None:
    assert messages(frozenset({"failed"}), event("prefect.flow-run.AwaitingRetry", **OF_RUNS)) == ["late runs"]


def test_each_event_about_a_run_is_of_a_cause() -> None:
    constants = (value for name, value in vars(events).items() if name.isupper())
    names = {one for one in constants if str(one).startswith((events.ENDED, "trainwright.training."))} - {events.ENDED}
    happen = [of_run(name, **{events.TOLD: "false"}) for name in sorted(names)]
    assert [one.event for one in happen if not messages(frozenset(get_args(Cause)), one)] == []


@pytest.mark.parametrize(
    "happens",
    [
        of_run(events.RESUMED, **{events.TOLD: "true"}),
        event("prefect.flow-run.ProcessDied", **OF_RUNS),
        event("prefect.flow-run.Crashed", deployment=f"prefect.deployment.{uuid4()}", pool=POOL),  # a node, another's
        event("prefect.flow-run.Completed", **OF_REAPER),
        event("prefect.flow-run.Failed", **OF_RUNS),
        event("prefect.work-pool.not-ready", {"prefect.resource.id": "prefect.work-pool.another"}),
        event(events.STORE_FULL, pipeline="trainwright.pipeline.other"),
    ],
    ids=lambda happens: happens.event,
)
def test_nobody_is_told_a_second_time_or_of_what_is_anothers(happens: ReceivedEvent) -> None:
    assert messages(frozenset(get_args(Cause)), happens) == []


@pytest.mark.parametrize(
    ("pool", "kind", "up"),
    [("gpu", "process", ""), (POOL_OF_UP, "process", "`trainwright up`, or "), ("k8s", "kubernetes", "")],
)
def test_the_message_about_a_pool_names_the_command_for_its_type(pool: str, kind: str, up: str) -> None:
    dead = event(
        "prefect.work-pool.not-ready",
        {"prefect.resource.id": POOL, "prefect.resource.name": pool, "prefect.work-pool.type": kind},
    )
    [trigger] = [one for one in automations.watch_triggers(automations.Receiver()) if one.kind == "pools"]
    body = render_user_template_sync(trigger.body, {"event": dead})
    command = worker_command(SimpleNamespace(name=pool, type=kind))
    assert body.endswith(f"so its runs, reaper and pages wait. Start one on its machine: {up}`{command}`.")


class Deployed(Server):
    """A server with deployments, too."""

    def __init__(self, *blocks: str) -> None:
        super().__init__(*blocks)
        self.deployments: dict[str, Any] = {}

    def deploy(self, flow: str, name: str, pool: str, tags: tuple[str, ...] = ()) -> None:
        made = SimpleNamespace(id=uuid4(), tags=["trainwright", *tags], work_pool_name=pool, flow=flow)
        self.deployments[f"{flow}/{name}"] = made

    def read_deployments(self, flow_filter: Any, offset: int) -> list[Any]:
        known = [one for one in self.deployments.values() if one.flow in flow_filter.name.any_]
        return known[offset : offset + 2]

    def read_work_pool(self, name: str) -> Any:
        return SimpleNamespace(id=f"id-of-{name}")


def deploy(server: Deployed, pipeline: str, pool: str, *asked: NotifyRule) -> list[str]:
    """What `deploy` does with `notify`."""
    client = cast("Any", server)
    server.deploy("reap", pool, pool)
    server.deploy("retrain", pipeline, pool, (f"pipeline:{pipeline}", *automations.notify_tags(asked)))
    tell_people(client, pipeline, f"{pipeline}@champion", asked, find_blocks(client, asked))
    return automations.watch(client)


def test_one_block_of_two_pipelines_has_one_automation_of_each_kind() -> None:
    server = Deployed(TEAM, PAGER)
    assert deploy(server, "silent", "cpu") == []
    deploy(server, "sales", "gpu", rule(TEAM, "failed"), rule(PAGER, "page"))
    names = deploy(server, "ads", "cpu", rule(TEAM, "store_full"))
    kinds = ["Trainwright's own flows", "crashes", "late runs", "pools", "stores"]
    assert names == [f"trainwright: {block}: {kind}" for block in (TEAM, PAGER) for kind in kinds]
    assert deploy(server, "ads", "cpu", rule(TEAM, "store_full")) == names
    made = {one.name: one for one in server.automations if one.name in names}
    assert len([one for one in server.automations if one.name in names]) == len(names)
    pools = made[f"trainwright: {TEAM}: pools"].trigger.match["prefect.resource.id"]
    assert pools == ["prefect.work-pool.id-of-cpu", "prefect.work-pool.id-of-gpu"]
    assert made[f"trainwright: {PAGER}: pools"].trigger.match["prefect.resource.id"] == ["prefect.work-pool.id-of-gpu"]
    deploy(server, "sales", "gpu")
    assert {one.name for one in server.automations} == {f"trainwright: {TEAM}: {kind}" for kind in kinds}
    del server.deployments["retrain/ads"]  # by a person, in Prefect
    assert deploy(server, "sales", "gpu") == []
    assert server.automations == []
