"""Gangs on real Prefect work pools: a real server, real workers and processes; fake ranks where torch adds nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.run_report import RunReport
from infra.processes.processes import find_marked, is_alive
from infra.store import Store, layout, open_store
from tests.support.conducting import TRAINING
from tests.support.pool import Conductor, Site, cancelled_within, commands_of, node_flow, processes_of, site_with, until
from tests.support.s3 import CREDENTIALS, S3Server
from tests.support.tiny import MODEL, SPEC, answer, trainwright, write_project
from tests.support.wheels import write_wheel

pytestmark = pytest.mark.usefixtures("forked_prefect")
slow = pytest.mark.slow
LONG = {"steps": 10_000, "step_s": 0.05}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, state_folder: Path, s3_server: S3Server) -> Iterator[Site]:
    # The server on S3 has put its credentials into the environment, which workers inherit.
    with site_with(tmp_path_factory.mktemp("site"), state_folder / "home") as site:
        site.pool("gpu", slots=4)
        yield site


@pytest.fixture
def bucket(s3_server: S3Server) -> Store:
    """A new store on S3."""
    return open_store(f"s3://{s3_server.bucket()}/team", s3_server.options)


def waits(line: dict[str, Any]) -> bool:
    return line.get("phase") == "waiting"


def trains(line: dict[str, Any]) -> bool:
    return line.get("phase") == "training" and line["step"] > 0


@slow
def test_two_gangs_of_three_on_four_slots_run_one_after_the_other(site: Site, tmp_path: Path) -> None:
    gangs = [Conductor(site, tmp_path / name, "gpu", {"step_s": 0.2}, nodes=3) for name in ("a", "b")]
    assert [gang.trained() for gang in gangs] == [(10, 1), (10, 1)]
    spans = []
    for gang in gangs:
        runs = site.ended_runs(gang.store)
        assert [run["state"]["type"] for run in runs] == ["COMPLETED"] * 3
        spans.append((min(run["start_time"] for run in runs), max(run["end_time"] for run in runs)))
    spans.sort()
    assert spans[0][1] < spans[1][0], spans
    sentences = {line["sentence"] for gang in gangs for line in gang.lines() if waits(line)}
    assert "3 of the 4 slots of gpu are needed at once, and 1 are free" in sentences
    assert site.slots("gpu") == 0


@pytest.mark.sweep
def test_a_node_run_says_what_and_for_whom_it_is(site: Site, tmp_path: Path) -> None:
    gang = Conductor(site, tmp_path / "a", "gpu", nodes=1)
    assert gang.trained()[0] == 10
    (run,) = site.ended_runs(gang.store)
    assert run["parameters"] == {"store": gang.store.uri, "training": TRAINING, "generation": 0, "node": 0}
    assert {"test", "training:k-0"} <= set(run["tags"])
    assert run["idempotency_key"].endswith("/trainings/k-0/g0/0")
    assert run["job_variables"]["labels"] == {"team": "tests"}
    # Below the run that trains.
    assert run["parent_task_run_id"] is not None
    # A store that was deleted and made again has the same keys: its old runs are not taken for new ones.
    shutil.rmtree(tmp_path / "a")
    assert Conductor(site, tmp_path / "a", "gpu", nodes=1).trained()[0] == 10
    assert len(site.ended_runs(gang.store)) == 2


@slow
def test_what_will_never_have_room_is_refused_at_once(site: Site, tmp_path: Path) -> None:
    narrow = site.pool("narrow", limit=1, worker=False)
    cases = {
        narrow: "train.pool: 2 nodes can never run at once, because the concurrency limit of the work pool narrow is "
        "1.",
        "nowhere": "train.pool: this Prefect server has no work pool nowhere.",
    }
    for pool, message in cases.items():
        gang = Conductor(site, tmp_path / pool, pool, nodes=2)
        assert gang.ended()["message"] == message
        assert gang.process.returncode == 2
        assert site.runs(gang.store) == []


@slow
def test_a_pool_without_a_worker_is_told_within_seconds(site: Site, tmp_path: Path) -> None:
    empty = site.pool("empty", worker=False)
    gang = Conductor(site, tmp_path / "a", empty, nodes=2)
    told = gang.said(waits)
    assert told["sentence"] == "no worker of the work pool empty is online; start one: trainwright worker --pool empty"
    ended = gang.ended()
    assert (ended["cause"], ended["message"]) == (
        "gang_incomplete",
        "No worker of the work pool empty was online for 3 s.",
    )
    assert site.runs(gang.store) == []


@slow
def test_a_missing_node_is_named_with_what_prefect_says_and_the_others_are_released(site: Site, tmp_path: Path) -> None:
    # Another gang has one of the pool's two places, which no global limit guards.
    pool = site.pool("shared", limit=2)
    other = Conductor(site, tmp_path / "other", pool, LONG, nodes=1)
    other.said(trains)
    gang = Conductor(site, tmp_path / "a", pool, nodes=2, rollcall_timeout_s=30)
    ended = gang.ended()
    assert ended["cause"] == "gang_incomplete"
    missing = ended["details"]["missing"]
    # On a busy machine the other may be late, too.
    assert "its run 'k-0 g0 node" in missing[-1]
    assert any(state in missing[-1] for state in ("Scheduled", "Pending", "Late")), missing
    assert ", ".join(missing) in ended["message"]
    assert sorted(run["state"]["type"] for run in site.ended_runs(gang.store)) == ["CANCELLED", "CANCELLED"]
    # Prefect's own process ends a moment after the state that it told.
    until(lambda: not processes_of(site, gang.store))
    other.signal(signal.SIGINT)
    assert other.ended()["cause"] == "cancelled"
    site.stop_work(pool)


HANGING = {"steps": 20, "faults": [{"generation": 0, "rank": rank, "step": 7, "kind": "hang"} for rank in (0, 1)]}


@slow
def test_a_gang_grows_when_a_worker_comes(site: Site, tmp_path: Path) -> None:
    pool = site.pool("late", worker=False)
    site.work(pool, limit=1)
    fewer = {"launch": {"min_nodes": 1, "hang_s": 180}, "train": {"global_batch_size": 16}, "rollcall_timeout_s": 30}
    # However long the second takes to come, there are steps left then.
    wait = {"generation": 0, "rank": 0, "step": 12, "kind": "wait", "for": str(tmp_path / "has-come")}
    gang = Conductor(site, tmp_path / "a", pool, {"steps": 120, "step_s": 0.1, "faults": [wait]}, nodes=2, **fewer)
    alone = gang.said(lambda line: line["sentence"].startswith("trains on 1 of 2 nodes"))
    assert " is " in alone["sentence"], "with what Prefect says of the run that nobody took"
    gang.said(lambda line: line["checkpoint_step"] == 10)
    site.work(pool, limit=1)
    gang.said(lambda line: line["sentence"].endswith(" has come: 2 nodes after the next checkpoint"))
    (tmp_path / "has-come").touch()
    assert gang.trained() == (120, 2)
    taken = gang.steps()
    assert taken[1, 0] == taken[1, 1] == list(range(taken[1, 0][0], 121))
    assert 15 < taken[1, 0][0] <= taken[0, 0][-1] + 1 < 120
    assert taken[0, 0][-1] - taken[1, 0][0] < 20, "what was done after that checkpoint, while the conductor heard of it"
    assert len(site.ended_runs(gang.store)) == 4
    site.stop_work(pool)


@pytest.mark.parametrize(("how", "where"), [pytest.param("ctrl-c", "a folder", marks=slow), ("prefect", "S3")])
def test_cancelling_ends_every_process_on_every_node_and_frees_the_slots(
    how: str, where: str, site: Site, bucket: Store, tmp_path: Path
) -> None:
    # Ranks that ignore SIGTERM, each with a process in a session of its own.
    gang = Conductor(site, tmp_path / "a", "gpu", HANGING, nodes=2, store=bucket if where == "S3" else None)
    gang.said(lambda line: line.get("checkpoint_step") == 5)
    # On each node: Prefect's, the flow's, the supervisor, torchrun, the rank, and what it started.
    until(lambda: len(commands_of(site, gang.store)) >= 10)
    assert site.slots("gpu") == 2
    if how == "ctrl-c":
        gang.signal(signal.SIGINT)
    else:
        runs = site.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["pooled"]}}})
        site.cancel(next(run for run in runs if run["parameters"]["store"] == gang.store.uri))
    cancelled_within(site, "gpu", gang.store, 120, how)
    assert gang.ended()["cause"] == "cancelled"


@pytest.mark.sweep
def test_cancelling_a_conductor_in_a_worker_ends_all_the_same(site: Site, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    run = site.conduct_in_worker("gpu", store, HANGING, nodes=2)
    until(lambda: len(commands_of(site, store)) >= 10, what=lambda: site.state(run))
    site.cancel(run)
    cancelled_within(site, "gpu", store, 120, "in a worker")
    until(lambda: site.state(run) == "CANCELLED", what=lambda: site.state(run))


def test_a_killed_node_flow_takes_its_node_with_it_and_the_gang_goes_on(
    site: Site, bucket: Store, tmp_path: Path
) -> None:
    # However late the kill comes and is noticed, both nodes have steps left then.
    waits = [{"generation": 0, "rank": rank, "step": 20, "kind": "hang"} for rank in (0, 1)]
    fake = {"steps": 40, "step_s": 0.1, "faults": waits}
    gang = Conductor(site, tmp_path / "a", "gpu", fake, nodes=2, store=bucket)
    gang.said(lambda line: line.get("checkpoint_step", 0) >= 5)
    victim = node_flow(site, gang, 1)
    below = processes_of(site, gang.store)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    told = gang.said(lambda line: line.get("phase") == "ended")
    print(f"a killed node flow was noticed after {time.monotonic() - killed:.1f} s")
    assert "(node_lost)" in told["sentence"]
    assert gang.trained() == (40, 2)
    until(lambda: not set(below) & set(processes_of(site, gang.store)))
    taken = gang.steps()
    assert 5 < taken[1, 0][0] <= 21, "it goes on from a checkpoint"
    assert taken[1, 0][-1] == 40
    until(lambda: site.slots("gpu") == 0)


@pytest.mark.sweep
def test_sigterm_to_a_node_flow_saves_a_checkpoint_and_the_gang_goes_on(site: Site, tmp_path: Path) -> None:
    gang = Conductor(site, tmp_path / "a", "gpu", {"steps": 60, "step_s": 0.1, "every": 1000}, nodes=2)
    gang.said(lambda line: line.get("step", 0) >= 5)
    os.kill(node_flow(site, gang, 0), signal.SIGTERM)
    told = gang.said(lambda line: line.get("phase") == "ended")
    assert "(preempted)" in told["sentence"]
    assert gang.trained()[1] == 2
    taken = gang.steps()
    assert taken[1, 0][0] == taken[0, 0][-1] + 1, "nothing was lost"


# Of five tries one is taken by default.
TIMES = [0, *(pytest.param(turn, marks=pytest.mark.sweep) for turn in range(1, 5))]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


@slow
@pytest.mark.parametrize("turn", TIMES)
def test_a_node_whose_run_prefect_calls_crashed_changes_nothing_when_it_goes_on(
    turn: int, site: Site, tmp_path: Path
) -> None:
    """It cannot see that it was given up: it is stopped until its successors have trained on."""
    fake = {"steps": 80, "step_s": 0.1, "until": str(tmp_path / "go")}
    gang = Conductor(site, tmp_path / "a", "gpu", fake, nodes=2, launch={"silence_s": 600})
    gang.said(lambda line: line.get("checkpoint_step", 0) >= 5)
    run = site.runs(gang.store)[turn % 2]
    asleep = processes_of(site, run)
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    site.ask(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CRASHED"}, "force": True})
    try:
        told = gang.said(lambda line: line.get("phase") == "ended")
        assert f"The supervisor of node {run['parameters']['node']} " in told["sentence"]
        assert " ended as Crashed" in told["sentence"]
        gang.said(lambda line: line.get("generation") == 1 and line.get("checkpoint_step", 0) >= 20 + 5 * turn)
        before = gang.steps()[0, run["parameters"]["node"]]
        assert alive(asleep)
    finally:
        for pid in alive(asleep):
            os.kill(pid, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert gang.trained() == (80, 2)
    until(lambda: not alive(asleep), 120)
    taken = gang.steps()
    assert taken[1, 0] == list(range(taken[1, 0][0], 81))
    assert len(taken[0, run["parameters"]["node"]]) <= len(before) + 30, "it ends once it sees the marker"
    result = gang.store.read_json(layout.result(TRAINING))
    assert (result["step"], result["generation"]) == (80, 1)


@pytest.mark.parametrize("turn", TIMES)
def test_a_node_run_that_prefect_executes_twice_runs_once(turn: int, site: Site, tmp_path: Path) -> None:
    gang = Conductor(site, tmp_path / "a", "gpu", {"steps": 100, "step_s": 0.1}, nodes=1)
    gang.said(trains)
    (run,) = site.runs(gang.store)
    site.execute_again(run)
    until(lambda: site.runs(gang.store)[0]["run_count"] == 2)
    assert gang.trained() == (100, 1)
    assert site.ended_runs(gang.store)[0]["state"]["type"] == "COMPLETED"
    assert gang.steps()[0, 0] == list(range(1, 101))


def test_nodes_of_a_killed_conductor_end_and_its_successor_goes_on(
    site: Site, bucket: Store, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    launch = {"heartbeat_s": 0.5}
    fake = {"steps": 100, "step_s": 0.1, "until": str(tmp_path / "never")}
    gang = Conductor(site, tmp_path / "a", "gpu", fake, nodes=2, launch=launch, store=bucket)
    gang.said(lambda line: line.get("checkpoint_step", 0) >= 5)
    gang.signal(signal.SIGKILL)
    killed = time.monotonic()
    gang.process.wait()
    until(lambda: not processes_of(site, gang.store), 120)
    # Its slots are free once their lease has run out; until then two of four are.
    assert site.slots("gpu") == 2
    fake = {"steps": 100}
    again = Conductor(site, tmp_path / "a", "gpu", fake, nodes=2, launch=launch, patience_s=1, store=bucket)
    assert again.trained() == (100, 2)
    taken = gang.steps()
    assert taken[1, 0][0] > 5
    if pytestconfig.getoption("--sweep"):
        until(lambda: site.slots("gpu") == 0, 180)
        print(f"the slots of a killed conductor were free after {time.monotonic() - killed:.0f} s")


def test_a_failure_does_not_replace_the_state_of_a_newer_execution(site: Site, tmp_path: Path) -> None:
    report = {"run_id": "r", "pipeline": "tiny", "sentence": "as asked", "stages": []}
    failed = RunReport(**report, verdict="failed", exit_code=5).to_json()
    promoted = RunReport(**report, verdict="promoted", exit_code=0).to_json()
    run = site.run("gpu", "waiting", {"folder": str(tmp_path), "failed": failed, "promoted": promoted})
    until(lambda: site.state(run) == "RUNNING", what=lambda: site.now(run)["state"])
    site.execute_again(run)
    until(lambda: site.now(run)["state"]["name"] == "Promoted", what=lambda: site.now(run)["state"])
    Path(tmp_path, "go").touch()
    until(Path(tmp_path, "gone").exists)
    until(lambda: not processes_of(site, run))
    state = site.now(run)["state"]
    assert (state["name"], state["type"]) == ("Promoted", "COMPLETED")


@pytest.mark.sweep
def test_a_server_that_is_away_does_not_end_training(site: Site, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    away_s = 60 if pytestconfig.getoption("--sweep") else 15
    gang = Conductor(site, tmp_path / "a", "gpu", {"steps": 40, "step_s": away_s / 30}, nodes=2)
    gang.said(trains)
    home = Path(os.environ["TRAINWRIGHT_HOME"])
    server = json.loads((home / "server.json").read_text())
    stopped = find_marked(server["mark"])
    workers = {pid for mark in site.workers.values() for pid in find_marked(mark)}
    stopped = [pid for pid in stopped if pid not in workers]
    before = gang.lines()[-1]["step"]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(away_s)
        during = gang.lines()[-1]["step"]
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert during > before + 10
    assert gang.trained() == (40, 1)
    assert [run["state"]["type"] for run in site.ended_runs(gang.store)] == ["COMPLETED"] * 2
    assert until(lambda: site.slots("gpu") in (0, 2))


NEEDS_STRANGER = """\
import sys

import stranger

assert "environments" in sys.prefix
"""


def test_the_whole_line_runs_on_pools_with_lightning_and_its_own_packages(
    site: Site, bucket: Store, tmp_path: Path
) -> None:
    there = {"launcher": "work-pool", "pool": "gpu"}
    spec = write_project(
        tmp_path / "tiny",
        {
            "store": {"uri": bucket.uri, "storage_options": bucket.storage_options},
            "environment": {"file": "requirements.txt", "wheels": str(site.wheels)},
            "train": {**SPEC["train"], **there, "strategy": "ddp", "nodes": 2, "rollcall_timeout_s": 400},
            "verify": there,
            "evaluate": {**SPEC["evaluate"], **there},
        },
    )
    write_wheel(site.wheels, "stranger", "1.2.0")
    (spec.parent / "requirements.txt").write_text("stranger\n")
    (spec.parent / "net.py").write_text(NEEDS_STRANGER + MODEL)
    report = answer(trainwright("run", spec, "--json", cwd=tmp_path))
    assert report["verdict"] == "promoted", report["sentence"]
    stages = {stage["name"]: stage for stage in report["stages"]}
    assert "on 2 ranks (ddp)" in stages["train"]["sentence"]
    runs = site.ended_runs(bucket)
    assert [run["state"]["type"] for run in runs] == ["COMPLETED"] * 4
    assert not any(secret in json.dumps(runs) for secret in CREDENTIALS.values())
    # The nodes share no folder with the run, so they made the environment themselves.
    assert len(list(site.nodes_home.glob("environments/*/bin/python"))) == 1
    # Whoever had a node pays for it: two of train, one each of verify and evaluate.
    used = [bucket.read_json(file.path) for file in bucket.stored() if file.path.endswith("/exit.json")]
    assert len(used) == 4
    assert report["cost"]["node_seconds"] > sum(one["released"] - one["started"] for one in used)
    whose = [tag.partition(":")[2] for run in runs for tag in run["tags"] if tag.startswith("stage:")]
    assert sorted(whose) == ["evaluate", "train", "train", "verify"]
    (page,) = site.ask("/artifacts/latest/filter", {"artifacts": {"key": {"any_": ["tiny-gang"]}}})
    assert "| 0 | 0 |" in page["data"]
    assert "| cpu |" in page["data"]
    assert page["data"].count("| done |") == 2
    told = answer(trainwright("logs", report["run_id"], "--rank", "1", "--json", cwd=tmp_path / "tiny"))
    assert [(one["rank"], one["node"], one["ended"]) for one in told["ranks"]] == [(1, 1, "done")]
    assert told["ranks"][0]["log"] is not None
    # Where it ran is part of no key.
    here = [
        f"--set={section}.{field}"
        for section in ("train", "verify", "evaluate")
        for field in ("launcher=local", "pool=null")
    ]
    again = answer(trainwright("run", spec, *here, "--json", cwd=tmp_path))
    assert [stage["status"] for stage in again["stages"]][:5] == ["reused"] * 5
