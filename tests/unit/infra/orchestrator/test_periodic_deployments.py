"""Deployments that look at something now and then: made once, and what a person changed in Prefect stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.schedules import CronSchedule

from infra.orchestrator.deployments import DAY_PAGE, SYSTEM_TAGS, checkout_steps, ensure_for_pool, parameter_schema
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
