"""The deployments of `prefect.yaml` on a real server and worker: scheduled and on demand, both reach `promoted`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.digits import EPOCHS, change_yaml
from tests.support.files import copy_tracked
from tests.support.pool import FINAL, Site, password_in, until
from tests.support.speed.children import of_copy
from tests.support.speed.prefect_database import put_new_database
from tests.support.tiny import trainwright

STAGES = ["validate", "shard", "train", "verify", "evaluate", "promote"]
SPEC = "examples/digits/pipeline.yaml"
PATIENCE_S = 480.0
TIMES = [0, *(pytest.param(turn, marks=pytest.mark.sweep) for turn in range(1, 50))]


@dataclass
class Checkout:
    """A clone of this repository with the digits data, and what `trainwright up` started for it."""

    folder: Path
    own: dict[str, str]
    site: Site

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.own}

    def prefect(self, *arguments: str) -> str:
        program = Path(sys.executable).with_name("prefect")
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def deployment(self, name: str) -> dict[str, Any]:
        return self.site.ask(f"/deployments/name/retrain/{name}", method="GET")

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first flow run that was begun and is as `wanted`."""

        def begun() -> list[dict[str, Any]]:
            asked = {"flow_runs": {"state": {"type": {"not_any_": ["SCHEDULED"]}}}}
            return list(self.site.ask("/flow_runs/filter", asked))

        return dict(until(lambda: next(filter(wanted, begun()), None), PATIENCE_S, begun))

    def ended(self, run: dict[str, Any], times: int = 1) -> dict[str, Any]:
        """The flow run once it has been executed `times` times and has its final state."""
        return self.wait_for(
            lambda now: now["id"] == run["id"] and now["run_count"] >= times and now["state"]["type"] in FINAL
        )

    def told(self, run: dict[str, Any]) -> str:
        """What a person would look at if a flow run ended otherwise than expected: its states and its log."""
        states = self.site.api.request("GET", "/flow_run_states/", params={"flow_run_id": run["id"]}).json()
        lines = self.site.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "sort": "TIMESTAMP_ASC"})
        found = [(one["timestamp"], f"{one['name']}: {one['message']}") for one in states]
        found += [(one["timestamp"], one["message"]) for one in lines]
        return "\n".join(" ".join(one) for one in sorted(found)[-60:])


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path, repository: Path) -> Iterator[Checkout]:
    place = tmp_path_factory.mktemp("deployed")
    put_new_database(place / "home", shared_folder)
    folder = place / "a clone"
    copy_tracked(repository, folder)
    subprocess.run([sys.executable, str(folder / "examples/digits/prepare.py")], check=True, timeout=400)
    change_yaml(folder / "examples/digits/lightning.yaml", ["trainer", "max_epochs"], EPOCHS)
    own = {"TRAINWRIGHT_HOME": str(place / "home"), **of_copy(folder)}
    try:
        up = trainwright("up", "--json", cwd=folder, env=own)
        assert up.returncode == 0, up.stderr
        made = Checkout(folder, own, Site(json.loads(up.stdout)["api"], place, password_in(place / "home")))
        made.prefect("deploy", "--all")
        yield made
        made.site.api.close()
    finally:
        trainwright("down", cwd=folder, env=own)


def reports(store: Path) -> list[dict[str, Any]]:
    """The reports of all runs in a store."""
    return [json.loads(path.read_text()) for path in store.glob("runs/*/report.json")]


def generations(store: Path) -> int:
    """How often something was trained there."""
    return len(list(store.glob("trainings/*/g*/launch.json")))


@pytest.fixture(scope="module")
def on_demand(checkout: Checkout) -> dict[str, Any]:
    """The flow run that `prefect deployment run` started, ended."""
    checkout.prefect("deployment", "run", "retrain/digits")
    return checkout.ended(checkout.wait_for(lambda run: not run["auto_scheduled"]))


def test_the_launch_form_has_a_few_scalar_fields(checkout: Checkout) -> None:
    for name in ("digits", "stdlib-gpt"):
        fields = checkout.deployment(name)["parameter_openapi_schema"]["properties"]
        kinds = {kind["type"] for field in fields.values() for kind in field.get("anyOf", [field])}
        assert kinds <= {"string", "boolean", "null"}
        assert all(field["description"] for field in fields.values())
        assert list(fields)[:2] == ["spec", "window"]


def test_a_spec_of_any_repository_is_deployed_and_a_pool_without_a_worker_is_named(
    checkout: Checkout, tmp_path: Path
) -> None:
    shutil.copytree(
        checkout.folder / "examples/digits", tmp_path / "theirs", ignore=shutil.ignore_patterns(".trainwright")
    )
    spec, asked = str(tmp_path / "theirs/pipeline.yaml"), {"cwd": tmp_path, "env": checkout.own}
    taken = trainwright("deploy", spec, **asked)
    assert (taken.returncode, "a deployment retrain/digits already" in taken.stderr) == (2, True)

    named = ["deploy", spec, "--name", "theirs", "--cron", "0 3 * * *", "--set", "train.seed=3"]
    made = trainwright(*named, "--json", **asked)
    assert (made.returncode, json.loads(made.stdout)["worker"]) == (0, True), made.stderr
    known = checkout.deployment("theirs")
    assert known["parameters"] == {"spec": spec, "set": "train.seed=3"}
    forms = [one["parameter_openapi_schema"]["properties"] for one in (known, checkout.deployment("digits"))]
    assert forms[0] == forms[1]
    assert [one["schedule"]["cron"] for one in known["schedules"]] == ["0 3 * * *"]

    checkout.site.ask("/work_pools/", {"name": "idle", "type": "process"})
    alone = trainwright("deploy", spec, "--name", "alone", "--pool", "idle", "--start", **asked)
    begun = checkout.site.ask("/flow_runs/count", {"deployments": {"name": {"any_": ["alone"]}}})
    assert (alone.returncode, begun) == (5, 0)
    assert "No worker of the work pool idle is online" in alone.stderr
    for name in ("theirs", "alone"):
        checkout.site.ask(f"/deployments/{checkout.deployment(name)['id']}", method="DELETE")


def test_a_run_from_the_command_line_is_promoted(checkout: Checkout, on_demand: dict[str, Any]) -> None:
    state = on_demand["state"]
    assert (state["name"], state["type"]) == ("Promoted", "COMPLETED"), checkout.told(on_demand)
    (report,) = reports(checkout.folder / "examples/digits/.trainwright")
    assert (report["verdict"], report["trigger"]) == ("promoted", "ui")
    assert report["model"] == {"name": "digits", "version": 1, "alias": "champion"}
    assert report["sentence"] in state["message"]


def test_people_recognise_what_they_see(checkout: Checkout, on_demand: dict[str, Any]) -> None:
    assert re.fullmatch(r"digits \d{8}-\d{6}-[0-9a-f]{6}", on_demand["name"]), on_demand["name"]
    assert {"trainwright", "team:examples"} <= set(on_demand["tags"])
    assert on_demand["parameters"] == {"spec": SPEC}
    of_run = {"flow_runs": {"id": {"any_": [on_demand["id"]]}}}
    tasks = checkout.site.ask("/task_runs/filter", {**of_run, "sort": "EXPECTED_START_TIME_ASC"})
    assert [task["name"] for task in tasks] == [f"{stage} digits" for stage in STAGES]
    for task, stage in zip(tasks, STAGES, strict=True):
        assert {"team:examples", f"stage:{stage}"} <= set(task["tags"])
        assert task["state"]["type"] == "COMPLETED"
    names = {task["id"]: task["name"].partition(" ")[0] for task in tasks}
    edges = [sorted({names[one["id"]] for each in task["task_inputs"].values() for one in each}) for task in tasks]
    assert edges == [[], ["validate"], ["shard"], ["train"], ["shard", "verify"], ["evaluate", "shard", "verify"]]
    pages = {page["key"]: page["data"] for page in checkout.site.ask("/artifacts/filter", of_run)}
    assert pages.keys() == {
        f"digits-{stage}" for stage in [*STAGES, "report", "shard-progress", "train-progress", "gang"]
    }
    assert [float(pages[f"digits-{stage}-progress"]) for stage in ("shard", "train")] == [100, 100]
    for stage in STAGES:
        assert pages[f"digits-{stage}"].startswith(f"# {stage}: ran\n")
    assert pages["digits-report"].startswith("# promoted\n")


@pytest.mark.parametrize("turn", TIMES)
def test_a_flow_run_that_is_executed_twice_is_one_run(turn: int, checkout: Checkout, on_demand: dict[str, Any]) -> None:
    store = checkout.folder / "examples/digits/.trainwright"
    before = reports(store)
    executions = checkout.ended(on_demand)["run_count"]
    checkout.site.execute_again(on_demand)
    ended = checkout.ended(on_demand, times=executions + 1)
    assert ended["state"]["name"] == "Promoted", checkout.told(on_demand)
    assert reports(store) == before
    assert generations(store) == 1


def test_a_ci_job_waits_for_a_deployment_and_gets_its_report(
    checkout: Checkout, on_demand: dict[str, Any], tmp_path: Path
) -> None:
    asked = {"cwd": checkout.folder, "env": {**checkout.own, "GITHUB_OUTPUT": str(tmp_path / "output")}}
    absent = trainwright("ci", SPEC, "--deployment", "digit", **asked)
    assert absent.returncode == 2
    # The command may first say that it removed what a killed process of somebody else's left behind.
    [sentence] = [line for line in absent.stderr.splitlines() if line.startswith("trainwright: ")]
    assert sentence.startswith("trainwright: This Prefect server has no deployment retrain/digit. Make it with")

    done = trainwright("ci", SPEC, "--deployment", "digits", "--junit", str(tmp_path / "junit.xml"), "--json", **asked)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "unchanged"
    assert "verdict=unchanged\n" in (tmp_path / "output").read_text()
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert [suite.get("name") for suite in suites] == [f"digits.{kind}" for kind in ("stages", "contract", "gates")]
    stages = [made.get("name") for made in suites[0]]
    assert stages == STAGES
    (kept,) = [one for one in reports(checkout.folder / "examples/digits/.trainwright") if one["trigger"] == "ci"]
    assert kept["run_id"] == report["run_id"]


def test_a_remote_run_that_somebody_else_cancels_and_one_whose_job_is_cancelled(
    checkout: Checkout, on_demand: dict[str, Any]
) -> None:
    checkout.site.ask("/work_pools/trainwright", {"is_paused": True}, "PATCH")
    command = [sys.executable, "-m", "flows.cli", "ci", SPEC, "--deployment", "digits", "--key"]
    jobs = [
        subprocess.Popen([*command, key], cwd=checkout.folder, env=checkout.env, stderr=subprocess.PIPE, text=True)
        for key in ("theirs", "mine")
    ]
    try:
        by_key: dict[str, dict[str, Any]] = {}
        while len(by_key) < 2:
            runs = checkout.site.ask("/flow_runs/filter", {"flow_runs": {"tags": {"all_": ["trainwright-ci"]}}})
            by_key = {run["parameters"]["key"]: run for run in runs if "key" in run["parameters"]}
            assert all(job.poll() is None for job in jobs)
            time.sleep(0.2)
        checkout.site.ask(f"/flow_runs/{by_key['theirs']['id']}/set_state", {"state": {"type": "CANCELLING"}})
        jobs[1].terminate()
        said = [job.communicate(timeout=480)[1] for job in jobs]
        assert [job.returncode for job in jobs] == [130, 130], said
        name = by_key["theirs"]["name"]
        assert f"The remote run {name} was cancelled in Prefect, and not by this job." in said[0]
        assert checkout.site.ask(f"/flow_runs/{by_key['mine']['id']}", method="GET")["state"]["type"] == "CANCELLED"
    finally:
        for job in jobs:
            job.kill()
        checkout.site.ask("/work_pools/trainwright", {"is_paused": False}, "PATCH")


@pytest.mark.slow
def test_a_scheduled_run_is_promoted(checkout: Checkout, tmp_path: Path) -> None:
    deployment = checkout.deployment("digits")
    path = f"/deployments/{deployment['id']}/schedules"
    # A store of its own, because what is the champion already would be `unchanged`.
    wanted = {
        "schedule": {"cron": "* * * * *", "timezone": "UTC"},
        "active": True,
        "parameters": {"store": str(tmp_path)},
    }
    (schedule,) = checkout.site.ask(path, [wanted])
    begun = checkout.wait_for(lambda run: run["auto_scheduled"] and "spec" in run["parameters"])
    checkout.site.ask(f"{path}/{schedule['id']}", method="DELETE")
    ended = checkout.ended(begun)
    assert ended["state"]["name"] == "Promoted", ended["state"]
    triggers = [(report["verdict"], report["trigger"]) for report in reports(tmp_path)]
    assert ("promoted", "schedule") in triggers
