"""Runs that lost their process, on a real server with real workers: the reaper has them resumed, within a budget."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from data_contracts.executions import Crash, Execution
from infra.processes.processes import find_marked, kill_marked
from infra.store import Store, layout, open_store
from infra.store.lease import held_lease
from infra.telemetry import LOG_FORMAT, PREFECT_IN_JSON
from tests.support.night import is_worker, kill, words_of
from tests.support.pool import FINAL, Site, command_lines, processes_of, site_of, until
from tests.support.tiny import SPEC, slowed, trainwright, write_project

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("forked_prefect")]

POOL = "nights"
LONG = {
    "train": {
        **SPEC["train"],
        "lightning": {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 40}},
        "checkpoint": {"every_steps": 20},
    },
    "retry": {"crashed": 1},
}


site = site_of(POOL, worker=False)


def reaped(site: Site, store: Store) -> dict[str, Any]:
    """The final state of a look by a worker."""
    look = site.run(POOL, "reap", {"store": store.uri, "pool": POOL}, "flows.reap.reap")
    until(lambda: site.state(look) in FINAL, what=lambda: site.now(look)["state"])
    return dict(site.now(look)["state"])


def killed_while_it_trains(site: Site, store: Store, flow_run: dict[str, Any], worker: str, generation: int) -> str:
    """Kill the worker's machine, as it were, once a generation has launched; the run's id."""

    def trains() -> list[Path]:
        assert site.state(flow_run) not in FINAL, site.now(flow_run)["state"]
        return list(Path(store.uri).glob(f"trainings/*/g{generation}/beat-*.json"))

    until(trains, what=lambda: site.now(flow_run)["state"])
    kill_marked(worker)
    assert not processes_of(site, flow_run)
    (run_id,) = store.list(layout.runs())
    assert held_lease(store, layout.lease(layout.run(run_id))) is not None
    return run_id


def kill_rank(site: Site, store: Store, flow_run: dict[str, Any], generation: int) -> None:
    """Kill the only rank of a generation, once it has committed a checkpoint."""
    until(lambda: list(Path(store.uri).glob(f"trainings/*/checkpoints/*-g{generation}/manifest.json")))
    commands = command_lines(processes_of(site, flow_run))
    (rank, *_) = [pid for pid, command in commands.items() if b"rank_bootstrap" in command]
    os.kill(rank, signal.SIGKILL)


def warned(site: Site, flow_run: dict[str, Any], *words: str) -> None:
    """The flow run's log in Prefect has a warning with these words, and a link to the page of the gang."""

    def line() -> list[str]:
        warnings = [text for level, text in site.log_lines(flow_run) if level >= logging.WARNING]
        return [text for text in warnings if all(word in text for word in (*words, "/artifacts/key/tiny-gang]"))]

    until(line, what=lambda: site.log_lines(flow_run))


def logged_in_json(site: Site, run_id: str, flow_run: dict[str, Any]) -> None:
    """What the workers and the flow run's processes logged is JSON, with the run and the flow run."""
    printed = (site.folder / f"worker-{POOL}.txt").read_text().splitlines()
    assert not [line for line in printed if re.match(r"[\d:.]+ \| ", line)], "Prefect's own form"
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert {"prefect.flow_runs.worker", "prefect.flow_runs", "trainwright"} <= {line["logger"] for line in lines}
    (ended,) = [line for line in lines if "generation 1 ended (" in line["message"]]
    assert (ended["run"], ended["pipeline"], ended["level"]) == (run_id, "tiny", "warning")
    assert ended["flow_run"] == flow_run["id"]
    assert ended["time"].startswith("20")


def records(store: Store, run_id: str) -> tuple[list[Execution], list[Crash]]:
    executions = [f"{layout.executions(run_id)}/{name}" for name in store.list(layout.executions(run_id))]
    crashes = [f"{layout.crashes(run_id)}/{name}" for name in store.list(layout.crashes(run_id))]
    return (
        [store.read_as(path, Execution.from_json) for path in executions],
        [store.read_as(path, Crash.from_json) for path in crashes],
    )


def test_a_run_that_lost_its_worker_goes_on_as_the_same_flow_run_and_ends_when_its_budget_does(
    site: Site, tmp_path: Path
) -> None:
    spec = write_project(tmp_path / "tiny", LONG)
    (slow := tmp_path / "slow").touch()
    (spec.parent / "net.py").write_text(slowed(slow))
    in_json = {LOG_FORMAT: "json", "PREFECT_LOGGING_SETTINGS_PATH": str(PREFECT_IN_JSON)}
    site.environment.update({"PREFECT_LOGGING_LEVEL": "INFO", **in_json})
    worker = site.work(POOL)
    store = open_store(str(spec.parent / ".trainwright"))
    flow_run = site.run(POOL, "retrain", {"spec": str(spec)}, "flows.retrain.retrain")
    run_id = killed_while_it_trains(site, store, flow_run, worker, 0)
    assert site.state(flow_run) == "RUNNING", "nobody told the server"

    worker = site.work(POOL)
    first = reaped(site, store)
    assert "is executed again by a worker" in first["message"], first
    assert "Every run has a verdict" in reaped(site, store)["message"], "it was asked for, or lives"
    warned(site, flow_run, "has ended without a verdict (crashed)")
    kill_rank(site, store, flow_run, 1)
    warned(site, flow_run, "generation 1 ended (", "Continuing from step")
    lines = "\n".join(text for level, text in site.log_lines(flow_run) if level == logging.INFO)
    for text in ("validate", "generation 1 is launched", "the checkpoint of step", "continues the unfinished training"):
        assert text in lines, lines
    logged_in_json(site, run_id, flow_run)
    killed_while_it_trains(site, store, flow_run, worker, 2)
    executions, crashes = records(store, run_id)
    assert [one.flow_run for one in executions] == [flow_run["id"]] * 2
    assert [(one.n, one.flow_run, one.ends) for one in crashes] == [(0, flow_run["id"], 0)]

    site.work(POOL)
    assert "was resumed once (retry.crashed: 1)" in reaped(site, store)["message"]
    report = json.loads(store.read(layout.run_attempt(run_id, 0)))
    assert (report["verdict"], report["exit_code"], report["error"]["cause"]) == ("failed", 5, "crashed")
    assert [one["name"] for one in report["stages"]] == ["shard", "validate"]
    assert site.state(flow_run) == "CRASHED"
    assert "Every run has a verdict" in reaped(site, store)["message"], "an end is final until a person resumes it"
    assert len(records(store, run_id)[1]) == 1

    slow.unlink()
    # A person begins a new budget. Nobody but this process carries it out, and the trigger stays the first one's.
    done = trainwright("resume", run_id, "--store", store.uri, "--json", env=site.environment)
    ended = json.loads(done.stdout)
    assert (done.returncode, ended["verdict"], ended["trigger"]) == (0, "promoted", "ui"), done.stderr
    assert len(store.list(layout.history("tiny", "champion"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_orphan", [False, True])
def test_a_run_that_is_cancelled_when_its_worker_is_dead_ends_as_cancelled(
    site: Site, tmp_path: Path, is_orphan: bool
) -> None:
    """Its process died with the worker, and the reaper's next look ends it; or it lives on and ends by itself."""
    spec = write_project(tmp_path / "tiny", LONG)
    (slow := tmp_path / "slow").touch()
    (spec.parent / "net.py").write_text(slowed(slow))
    worker = site.work(POOL)
    store = open_store(str(spec.parent / ".trainwright"))
    flow_run = site.run(POOL, "retrain", {"spec": str(spec)}, "flows.retrain.retrain")
    until(lambda: list(Path(store.uri).glob("trainings/*/g0/beat-*.json")), what=lambda: site.now(flow_run))
    if is_orphan:
        assert sum(kill(pid) for pid in find_marked(worker) if is_worker(words_of(pid)))
    else:
        kill_marked(worker)
    site.cancel(flow_run)
    assert site.state(flow_run) == "CANCELLING"
    if not is_orphan:
        site.work(POOL)
        assert "was cancelled in Prefect" in reaped(site, store)["message"]
    until(lambda: site.state(flow_run) == "CANCELLED", what=lambda: site.now(flow_run)["state"])
    until(lambda: not processes_of(site, flow_run))
    (run_id,) = store.list(layout.runs())
    report = json.loads(store.read(layout.run_attempt(run_id, 0)))
    assert (report["verdict"], report["exit_code"], report["error"]["cause"]) == ("cancelled", 130, "cancelled")
    assert held_lease(store, layout.lease(layout.run(run_id))) is None
    assert records(store, run_id)[1] == [], "it is no crash"
