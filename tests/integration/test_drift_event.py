"""On a real server: data that drift rejected starts the deployment once, through an automation, and is accepted."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from data_contracts.load import load_spec
from tests.support.pool import ASKED, Site, site_of, until
from tests.support.tiny import trainwright, write_project

pytestmark = pytest.mark.usefixtures("forked_prefect")

EMIT = """
import sys
from data_contracts.records import ColumnDrift, DriftReport
from infra.orchestrator.events import announce_drift
moved = ColumnDrift(column="c", verdict="critical", p=0, nulls=(0, 0), sentence="c: moved")
report = DriftReport(against="tiny@champion", columns=[moved])
announce_drift(sys.argv[1], sys.argv[3], report, rejected=sys.argv[2] == "true")
"""


site = site_of()


def test_a_rejection_because_of_drift_starts_one_retraining(site: Site, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    set_ = ["--set", "contract.drift.retrain=true", "--set", "contract.drift.fail_on=critical"]
    site.pool("drifting", worker=False)
    for _ in range(2):  # the second changes the first's automation
        done = trainwright("deploy", str(spec), "--pool", "drifting", *set_, "--json", env=site.environment)
        assert done.returncode == 0, done.stderr
    deployment = site.ask("/deployments/name/retrain/tiny", method="GET")
    [automation] = site.ask("/automations/filter", {})
    assert automation["name"] == "retrain/tiny when its data drifted"

    def started() -> list[dict]:
        return site.ask("/flow_runs/filter", {"flow_runs": {"deployment_id": {"any_": [deployment["id"]]}}})

    def emit(pipeline: str, rejected: str, **of: str) -> None:
        environment = {**site.environment, **{f"PREFECT__RUNTIME__DEPLOYMENT__{name}": one for name, one in of.items()}}
        subprocess.run([*ASKED, EMIT, pipeline, rejected, uuid.uuid4().hex], env=environment, check=True)

    emit("tiny", "false", ID=deployment["id"])
    emit("another", "true", ID=deployment["id"])
    emit("tiny", "true")  # a run by hand
    emit("tiny", "true", ID="00000000-0000-0000-0000-000000000000")  # another deployment of this pipeline
    emit("tiny", "true", ID=deployment["id"])
    until(started)  # Prefect takes events in order, so those that must not start one have had their turn
    [run] = started()
    assert run["parameters"]["set"].split() == [*set_[1::2], "contract.drift.fail_on=never"]
    assert run["parameters"]["spec"] == str(spec)
    started_with = load_spec(spec, run["parameters"]["set"].split()).contract
    assert (started_with.drift.fail_on, started_with.drift.retrain) == ("never", True)
    events = site.ask("/events/filter", {"filter": {"event": {"name": ["trainwright.data.drifted"]}}})["events"]
    assert json.loads(json.dumps(events[0]["payload"]))["columns"] == ["c"]
    trainwright("deploy", str(spec), "--pool", "drifting", "--json", env=site.environment)
    assert site.ask("/automations/filter", {}) == []
