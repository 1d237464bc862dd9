"""Deployments that look at something now and then: made once, and what a person changed in Prefect stays."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.schedules import CronSchedule

from data_contracts.messages.children import StoreAddress
from infra.orchestrator.deployments import (
    DAY_PAGE,
    SYSTEM_TAGS,
    checkout_steps,
    ensure_for_pool,
    ensure_upkeep,
    parameter_schema,
)
from tests.support.deployed import Deployments


def made(known: Any) -> list[dict[str, Any]]:
    client: Any = Deployments(**({"day-page/gpus": known} if known else {}))
    ensure_for_pool(client, "gpus", "process", DAY_PAGE, {"store": "first"})
    return [vars(client.known["day-page/gpus"])] * client.made


def test_a_new_deployment_has_its_own_schedule_and_few_runs_at_a_time() -> None:
    [new] = made(None)
    assert new["entrypoint"] == DAY_PAGE.entrypoint
    assert new["parameters"] == {"store": "first"}
    assert [(one.schedule.cron, one.active) for one in new["schedules"]] == [(DAY_PAGE.every, True)]
    assert (new["concurrency_limit"], new["paused"]) == (2, None), "one may be dead and keep its slot for a while"


def test_a_changed_schedule_a_pause_and_parameters_stay() -> None:
    schedule = SimpleNamespace(schedule=CronSchedule(cron="1 1 * * *"), active=False)
    old = SimpleNamespace(pull_steps=[], paused=True, parameters={"store": "mine", "gone": 1}, schedules=[schedule])
    [changed] = made(old)
    assert [(one.schedule.cron, one.active) for one in changed["schedules"]] == [("1 1 * * *", False)]
    assert (changed["paused"], changed["parameters"]) == (True, {"store": "mine"})


@pytest.mark.parametrize(
    "older",
    [
        {"parameter_openapi_schema": {"properties": {}}},
        {"entrypoint": "earlier"},
        {"pull_steps": []},
        {"tags": ["trainwright"]},
        {"global_concurrency_limit": SimpleNamespace(limit=1)},
        {"global_concurrency_limit": None},
    ],
)
def test_a_deployment_of_an_earlier_version_takes_what_its_flow_takes_now(older: dict[str, Any]) -> None:
    assert made(as_wanted()) == [], "one of this checkout is left alone"
    [changed] = made(as_wanted(**older))
    assert changed["entrypoint"] == DAY_PAGE.entrypoint
    assert changed["parameters"] == {"store": "first"}, "which it lacked"
    assert changed["tags"] == ["trainwright", "system"]
    assert changed["parameter_openapi_schema"]["properties"].keys() == DAY_PAGE.properties.keys()


def as_wanted(**older: Any) -> Any:
    found = {
        "pull_steps": checkout_steps("process"),
        "entrypoint": DAY_PAGE.entrypoint,
        "parameter_openapi_schema": parameter_schema(DAY_PAGE.properties, DAY_PAGE.required),
        "paused": False,
        "parameters": {},
        "schedules": [],
        "tags": list(SYSTEM_TAGS),
        "global_concurrency_limit": SimpleNamespace(limit=2),
    }
    return SimpleNamespace(**{**found, **older})


KEYS: dict[str, object] = {"key": "env:STORE_KEY", "secret": "env:STORE_SECRET"}


def test_two_specs_with_one_store_share_its_upkeep_whose_schedule_and_pause_stay() -> None:
    client: Any = Deployments()
    title = ensure_upkeep(client, "gpus", StoreAddress(uri="s3://team/nights", options=KEYS))
    new = client.known[title]
    assert new.entrypoint == "flows.upkeep.upkeep"
    assert new.parameters == {"store": "s3://team/nights", "storage_options": KEYS, "pointers": None}
    assert (new.concurrency_limit, new.concurrency_options.collision_strategy) == (1, "ENQUEUE"), "no day is left out"
    [daily] = new.schedules
    assert (int(daily.schedule.cron.split()[0]) < 60, daily.schedule.cron.split()[1:]) == (True, ["1", "*", "*", "*"])

    new.paused, new.schedules = True, [SimpleNamespace(schedule=CronSchedule(cron="1 1 * * 0"), active=True)]
    other = StoreAddress(uri="s3://team/nights/", options={**KEYS, "key": "env:OTHER"}, pointers="sqlite:////n.db")
    assert ensure_upkeep(client, "cpus", other) == title
    changed = client.known[title]
    assert (changed.paused, [one.schedule.cron for one in changed.schedules]) == (True, ["1 1 * * 0"])
    assert (changed.work_pool_name, changed.parameters["pointers"]) == ("cpus", "sqlite:////n.db")


def test_stores_that_differ_by_their_server_or_by_the_machines_of_a_pool_have_upkeeps_of_their_own() -> None:
    client: Any = Deployments()
    places = [
        ("gpus", "s3://team/nights", {}),
        ("gpus", "s3://team/nights", {"endpoint_url": "http://127.0.0.1:9000"}),
        ("gpus", "s3://team/nights/more", {}),
        ("gpus", "/home/ada/digits/.trainwright", {}),
        ("cpus", "/home/ada/digits/.trainwright", {}),
        ("gpus", "/данные", {}),
    ]
    titles = [ensure_upkeep(client, pool, StoreAddress(uri=uri, options=given)) for pool, uri, given in places]
    assert len(set(titles)) == len(titles)
    names = [re.sub("-[0-9a-f]{8}$", "", title) for title in titles]
    assert names[2:] == ["upkeep/s3-team-nights-more", *["upkeep/home-ada-digits-trainwright"] * 2, "upkeep/store"]
