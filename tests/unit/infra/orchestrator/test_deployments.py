"""`prefect.yaml`: one deployment per example, by schedule, asking for scalars; the reaper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.orchestrator.deployments import DAY_PAGE, POOL, REAPER, RESUME_ENTRYPOINT


@pytest.fixture(scope="module")
def listed(repository: Path) -> list[dict[str, Any]]:
    return yaml.safe_load((repository / "prefect.yaml").read_text())["deployments"]


def test_the_reaper_is_deployed_as_up_deploys_it(listed: list[dict[str, Any]]) -> None:
    by_entrypoint = {one["entrypoint"]: one for one in listed if "spec" not in one.get("parameters", {})}
    periodic = (REAPER, DAY_PAGE)
    assert set(by_entrypoint) == {RESUME_ENTRYPOINT, *(one.entrypoint for one in periodic)}
    for one in periodic:
        assert [schedule["cron"] for schedule in by_entrypoint[one.entrypoint]["schedules"]] == [one.every]
    assert {(one["name"], one["work_pool"]["name"]) for one in by_entrypoint.values()} == {(POOL, POOL)}
    assert by_entrypoint[REAPER.entrypoint]["concurrency_limit"] == {"limit": 2, "collision_strategy": "CANCEL_NEW"}


def test_every_example_that_runs_as_it_is_is_deployed_on_our_pool_by_schedule_too(
    listed: list[dict[str, Any]], repository: Path
) -> None:
    deployments = {one["parameters"]["spec"]: one for one in listed if "spec" in one.get("parameters", {})}
    specs = {str(path.relative_to(repository)) for path in repository.glob("examples/*/pipeline.yaml")}
    # What `init --from huggingface` copies: a person puts a model and data beside it.
    assert set(deployments) == specs - {"examples/finetune/pipeline.yaml"}
    for deployment in deployments.values():
        assert deployment["entrypoint"] == "flows.retrain.retrain"
        assert deployment["work_pool"]["name"] == POOL
        assert [bool(schedule["cron"]) for schedule in deployment["schedules"]] == [True]


def test_the_launch_form_asks_for_a_few_scalars() -> None:
    from prefect.utilities.callables import parameter_schema

    from flows.retrain import retrain

    fields = parameter_schema(retrain).properties
    kinds = {kind["type"] for field in fields.values() for kind in field.get("anyOf", [field])}
    assert kinds <= {"string", "boolean", "integer", "number", "null"}
    assert len(fields) <= 8
