"""A worker that is stopped as planned while real runs train: the next one continues, and nothing counts as a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_contracts.messages.gang import Launch
from infra.processes.environment import FLOW_RUN
from infra.processes.processes import find_marked, marked_env, module_command, new_mark
from infra.store import layout, open_store
from tests.support.conducting import TRAINING
from tests.support.pool import FINAL, REPOSITORY, Conductor, Site, processes_of, site_of, until
from tests.support.tiny import SPEC, slowed, write_project

# No periodic checkpoint comes, and whatever uses up a budget ends the run.
STRICT: dict[str, Any] = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 40}},
        "checkpoint": {"every_steps": 100_000},
    },
    "retry": {"crashed": 0, "preempted": 0, "node_lost": 0},
}

site = site_of()


def started(site: Site, pool: str, folder: Path) -> subprocess.Popen[bytes]:
    """A worker as `trainwright up` and the unit start it, which the server has heard of."""
    before = site.ask(f"/work_pools/{pool}/workers/filter")
    process = _process(site, pool, folder, module_command("infra.orchestrator.worker", pool))
    until(
        lambda: site.ask(f"/work_pools/{pool}/workers/filter") != before,
        what=lambda: (folder / "worker.txt").read_text(),
    )
    return process


def started_in_pod(site: Site, pool: str, folder: Path, run: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A flow run as the job of a Kubernetes pool starts it, and then the worker."""
    template = json.loads((REPOSITORY / "infra/kubernetes/conductor-job-template.json").read_text())
    python, *arguments = template["variables"]["properties"]["command"]["default"].split()
    assert python == "python"
    # As prefect-kubernetes sets them for a job that Kubernetes does not start again.
    given = {FLOW_RUN: run["id"], "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "reschedule"}
    return _process(site, pool, folder, [sys.executable, *arguments], given)


def _process(
    site: Site, pool: str, folder: Path, command: list[str], given: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    mark = new_mark()
    site.workers[f"{pool}-{len(site.workers)}"] = mark
    environ = {**marked_env(mark), **site.environment, "TRAINWRIGHT_HOME": str(site.nodes_home), **(given or {})}
    with (folder / "worker.txt").open("a") as log:
        return subprocess.Popen(
            command,
            env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def stopped(worker: subprocess.Popen[bytes]) -> None:
    """What systemd does with KillMode=mixed: SIGTERM to the main process alone."""
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(180) == 0


@pytest.mark.parametrize("where", ["worker", pytest.param("pod", marks=pytest.mark.slow)])
def test_a_run_is_handed_over_with_a_checkpoint_and_no_budget_is_used(site: Site, tmp_path: Path, where: str) -> None:
    spec = write_project(tmp_path / "tiny", STRICT)
    (slow := tmp_path / "slow").touch()
    took_step = tmp_path / "took-step"
    step = slowed(slow).replace("        time.sleep", f"        Path({str(took_step)!r}).touch()\n        time.sleep")
    (spec.parent / "net.py").write_text(step)
    store = open_store(str(spec.parent / ".trainwright"))
    pool = site.pool(f"planned-{where}", worker=False)
    run = site.run(pool, "retrain", {"spec": str(spec)}, "flows.retrain.retrain")

    def carried_out() -> subprocess.Popen[bytes]:
        return started_in_pod(site, pool, tmp_path, run) if where == "pod" else started(site, pool, tmp_path)

    worker = carried_out()

    def trains() -> bool:
        assert site.state(run) not in FINAL, site.now(run)["state"]
        return took_step.exists()

    until(trains, what=lambda: site.now(run)["state"])
    stopped(worker)
    assert processes_of(site, run) == []
    state = site.now(run)["state"]
    assert (state["type"], state["name"]) == ("SCHEDULED", "AwaitingRetry"), state
    (run_id,), (training,) = store.list(layout.runs()), store.list(layout.trainings())
    assert store.list(layout.run_attempts(run_id)) == [], "the run has not ended"

    slow.unlink()
    worker = carried_out()
    until(lambda: site.state(run) in FINAL, what=lambda: site.now(run)["state"])
    assert site.now(run)["state"]["name"] == "Promoted", site.now(run)["state"]
    launch = store.read_as(layout.launch(f"{layout.trainings()}/{training}", 1), Launch.from_json)
    assert launch.resume is not None, "it continues from the checkpoint that the stop asked for"
    assert launch.resume.step > 0
    assert store.list(layout.executions(run_id)) == ["0-handed-over.json", "0.json", "1.json"]
    assert store.list(layout.crashes(run_id)) == []

    def told() -> list[str]:
        asked = {"filter": {"event": {"prefix": ["trainwright.run."]}}}
        return [one["event"] for one in site.ask("/events/filter", asked)["events"] if run_id in json.dumps(one)]

    until(lambda: "trainwright.run.promoted" in told(), what=told)
    assert told() == ["trainwright.run.promoted"], "nobody is told of the stop"
    if where == "pod":
        assert worker.wait(60) == 0, "a pod ends with its flow run"


def test_a_worker_that_is_killed_leaves_none_that_takes_flow_runs(site: Site, tmp_path: Path) -> None:
    pool = site.pool("planned-killed", worker=False)
    worker = started(site, pool, tmp_path)
    [mark] = [mark for name, mark in site.workers.items() if name.startswith(pool)]
    worker.kill()
    worker.wait()
    until(lambda: not find_marked(mark), what=lambda: find_marked(mark))


@pytest.mark.slow
def test_a_node_whose_worker_is_stopped_costs_its_gang_no_budget(site: Site, tmp_path: Path) -> None:
    pool = site.pool("planned-nodes", worker=False)
    worker = started(site, pool, tmp_path)
    fake = {"steps": 60, "step_s": 0.1, "every": 1000, "until": str(tmp_path / "stopped")}
    gang = Conductor(site, tmp_path / "a", pool, fake, nodes=1, retry={"preempted": 0, "node_lost": 0})
    gang.said(lambda line: line.get("step", 0) >= 5)
    stopped(worker)
    (tmp_path / "stopped").touch()
    started(site, pool, tmp_path)
    assert gang.trained() == (60, 2)
    taken = gang.steps()
    assert taken[1, 0][0] == taken[0, 0][-1] + 1, "nothing was lost"
    assert gang.store.exists(layout.launch(TRAINING, 1))
