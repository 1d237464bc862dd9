"""A deployed run that waits for an approval, on a real server and worker: suspended, answered, executed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.store import Store, layout, open_store
from infra.store.lease import held_lease
from tasks.queries.history import Move, moves_of
from tests.support.pool import Site, processes_of, site_of, until
from tests.support.tiny import SPEC, trainwright, write_project

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

POOL = "approving"
FORM = {"decision": "approve", "reason": "recall is what we need", "your_name": "Ada"}
MANUAL = {"promote": {**SPEC["promote"], "approval": "manual"}}


# Its only worker has room for one run: a run that waits must not take it.
site = site_of(POOL, limit=1)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("project") / "tiny", MANUAL)


def store_of(spec: Path) -> Store:
    return open_store(str(spec.parent / ".trainwright"), create=False)


def suspended(site: Site, spec: Path, alias: str) -> tuple[dict[str, Any], str]:
    """A new flow run, once it is suspended, and the id of its run. All of them use one training."""
    parameters = {"spec": str(spec), "set": f"promote.alias={alias}"}
    flow_run = site.run(POOL, "retrain", parameters, "flows.retrain.retrain")

    def waits() -> bool:
        state = site.now(flow_run)["state"]
        assert state["type"] not in ("FAILED", "CRASHED", "COMPLETED"), state
        return state["type"] == "PAUSED"

    until(waits, what=lambda: site.now(flow_run)["state"])
    until(lambda: not processes_of(site, flow_run))
    return flow_run, site.now(flow_run)["name"].split()[1]


def form_of(site: Site, flow_run: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The schema of the form that the pages show, and the text above it."""
    keys = site.now(flow_run)["state"]["state_details"]["run_input_keyset"]
    schema, text = (
        site.api.get(f"/flow_runs/{flow_run['id']}/input/{keys[name]}").json() for name in ("schema", "description")
    )
    return (schema if isinstance(schema, dict) else json.loads(schema)), text


def ended(site: Site, flow_run: dict[str, Any]) -> str:
    """The name of its final state."""
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    until(lambda: site.now(flow_run)["state"]["type"] in final, what=lambda: site.now(flow_run)["state"])
    return str(site.now(flow_run)["state"]["name"])


def last_move(store: Store, alias: str) -> Move:
    return moves_of(store, "tiny", alias)[alias][-1]


def test_a_run_is_suspended_without_worker_or_lease_and_its_form_promotes(site: Site, spec: Path) -> None:
    flow_run, run_id = suspended(site, spec, "champion")
    store = store_of(spec)
    report = json.loads(store.read(layout.run_attempt(run_id, 0)))
    assert (report["verdict"], report["exit_code"]) == ("waiting", 9)
    assert report["stages"][-1]["status"] == "waiting"
    assert held_lease(store, layout.lease(layout.run(run_id))) is None
    # The only place of the only worker is free: a second run gets as far.
    other, _ = suspended(site, spec, "challenger")

    schema, text = form_of(site, flow_run)
    assert set(schema["properties"]) == {"decision", "reason", "your_name"}
    assert "at least the 0.8 asked for" in text
    assert "tiny@champion" in text
    empty = site.api.post(f"/flow_runs/{flow_run['id']}/resume", json={"run_input": {**FORM, "reason": ""}})
    assert site.now(flow_run)["state"]["type"] == "PAUSED", empty.text

    # As a team's proxy does for a reviewer who signed in (tests/integration/test_proxy.py).
    signed_in = {"X-Trainwright-Person": "grace", "X-Trainwright-Role": "reviewer"}
    site.api.post(f"/flow_runs/{flow_run['id']}/resume", json={"run_input": FORM}, headers=signed_in)
    assert ended(site, flow_run) == "Promoted"
    approval = last_move(store, "champion").approval
    assert (approval.by, approval.via, approval.reason) == ("grace", "proxy", "recall is what we need")
    assert "in Prefect's pages (signed in at the proxy)" in approval.sentence

    environment = {**site.environment, "TRAINWRIGHT_ACTOR": "ada"}
    asker = site.now(other)["name"].split()[1]
    given = trainwright("approve", asker, "--reason", "seen", "--store", store.uri, "--json", env=environment)
    assert given.returncode == 0, given.stderr
    assert json.loads(given.stdout)["resumed"] == [site.now(other)["name"]]
    assert ended(site, other) == "Promoted", "it continues by itself"
    approval = last_move(store, "challenger").approval
    assert (approval.by, approval.via, approval.reason) == ("ada", "cli", "seen")


def test_a_local_run_ends_waiting_and_resume_continues_it_once_it_is_answered(site: Site, spec: Path) -> None:
    asked = {"cwd": spec.parent, "env": site.environment}
    ran = trainwright("run", spec, "--set", "promote.alias=third", "--json", **asked)
    report = json.loads(ran.stdout)
    assert (ran.returncode, report["verdict"], report["stages"][-1]["status"]) == (9, "waiting", "waiting"), ran.stderr
    run_id = report["run_id"]
    assert f"trainwright approve {run_id} --reason WHY" in ran.stderr
    assert held_lease(store_of(spec), layout.lease(layout.run(run_id))) is None
    again = trainwright("resume", run_id, **asked)
    assert (again.returncode, "person must approve" in again.stdout) == (9, True), again.stderr
    given = trainwright("approve", run_id, "--reason", "seen", **asked)
    assert f"`trainwright resume {run_id}` continues the run" in given.stdout, given.stderr
    assert trainwright("resume", run_id, **asked).returncode == 0
    told = trainwright("history", "tiny@third", **asked).stdout
    assert "approved it at" in told
    assert 'on the command line (name as stated): "seen"' in told
    late = trainwright("refuse", run_id, "--reason", "no", **asked)
    assert (late.returncode, "does not wait for an answer: it ended promoted" in late.stderr) == (2, True), late.stderr
