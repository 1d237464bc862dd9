"""`prefect.yaml`, read as Prefect reads it: one deployment per example, with a schedule, asking for scalars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def deployments(repository: Path) -> dict[str, dict[str, Any]]:
    """Deployments by the spec that they run."""
    from prefect.cli.deploy._config import _load_deploy_configs_and_actions
    from rich.console import Console

    found, _ = _load_deploy_configs_and_actions(prefect_file=repository / "prefect.yaml", console=Console())
    return {deployment["parameters"]["spec"]: deployment for deployment in found}


def test_every_example_is_deployed_and_nothing_else(deployments: dict[str, dict[str, Any]], repository: Path) -> None:
    specs = {str(path.relative_to(repository)) for path in repository.glob("examples/*/pipeline.yaml")}
    assert set(deployments) == specs


def test_each_runs_on_our_pool_by_schedule_too(deployments: dict[str, dict[str, Any]]) -> None:
    from infra.orchestrator.local_pool import POOL

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
