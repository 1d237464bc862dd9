"""A promotion and a rollback are events of their model, and a promotion starts what an automation names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.processes.processes import CODE_ROOT
from tests.support.pool import ASKED, Site, model_events, site_of, until
from tests.support.tiny import trainwright, write_project

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_prefect")]

EMIT = """
import sys
from data_contracts.run_report import ModelName, RunReport
from infra.orchestrator.events import announce_verdict
run, verdict, model, alias = sys.argv[1:]
about = {"run_id": run, "pipeline": "first", "exit_code": 0, "sentence": "s", "stages": [], "finished": "t"}
announce_verdict(RunReport(verdict=verdict, model=ModelName(name=model, version=2, alias=alias), **about))
"""


site = site_of()


def test_a_promotion_starts_what_an_automation_names(site: Site, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "second", {"name": "second"})
    site.pool("after", worker=False)
    done = trainwright("deploy", str(spec), "--pool", "after", "--json", env=site.environment)
    assert done.returncode == 0, done.stderr
    deployment = site.ask("/deployments/name/retrain/second", method="GET")
    page = (CODE_ROOT / "docs/operating.md").read_text()
    [automation] = [one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "actions:" in one]
    asked = yaml.safe_load(automation)
    asked["trigger"]["match"] = {"trainwright.name": ["first@champion", "third@canary"]}
    asked["actions"][0]["deployment_id"] = deployment["id"]
    site.ask("/automations/", asked)

    def started() -> list[dict]:
        return site.ask("/flow_runs/filter", {"flow_runs": {"deployment_id": {"any_": [deployment["id"]]}}})

    def emit(*told: str) -> None:
        subprocess.run([*ASKED, EMIT, *told], env=site.environment, check=True)

    emit("r1", "not_promoted", "first", "champion")
    emit("r2", "promoted", "first", "staging")
    emit("r3", "promoted", "another", "champion")
    emit("r4", "unchanged", "first", "champion")
    for _ in range(2):  # two processes tell of one end
        emit("r5", "promoted", "first", "champion")
    until(started)
    emit("r6", "promoted", "third", "canary")
    until(lambda: len(started()) > 1)
    assert [one["created_by"]["type"] for one in started()] == ["AUTOMATION"] * 2
    until(lambda: len(model_events(site, "first")) >= 3)  # the server stores an event after it has acted on it
    told = model_events(site, "first")
    assert sorted(one["event"].rpartition(".")[2] for one in told) == ["not_promoted", "promoted", "promoted"]
    assert all(one["related"][0]["prefect.resource.id"] == "trainwright.pipeline.first" for one in told)
