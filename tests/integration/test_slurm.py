"""A gang as jobs of a real Slurm: what becomes of a job is what becomes of its training.

What is the same with every launcher is in `test_launchers.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.records.nodes import decide
from infra.store import layout, open_store
from tests.support.clusters import SlurmCluster, at_rest, ended, nodes_of, processes_left, used
from tests.support.conducting import TRAINING
from tests.support.slurm import ACCOUNT, QOS
from tests.support.tiny import SPEC, trainwright, write_project
from tests.support.waiting import until

pytestmark = [pytest.mark.root, *(pytest.mark.apt(name) for name in ("slurmctld", "slurmd", "munge"))]
EXCLUSIVE = ("--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
LONG = {"steps": 20, "every": 5, "step_s": 0.05}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    cluster = SlurmCluster()
    try:
        yield cluster
    finally:
        cluster.close()


def test_a_job_that_another_preempts_saves_a_checkpoint_and_is_queued_again(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    gang, file = at_rest(cluster, tmp_path)
    urgent = cluster.slurm.ask("sbatch", "--parsable", "--partition=urgent", *EXCLUSIVE).strip()
    waits = gang.said(lambda line: line["generation"] == 1 and "its Slurm job" in line["sentence"])
    assert "is PENDING" in waits["sentence"]
    cluster.slurm.ask("scancel", urgent)
    file.touch()
    assert gang.trained() == (10, 2)
    assert [cause for cause, _ in ended(gang)] == ["preempted"]
    assert used(gang) == {"preempted": 1}
    assert gang.store.read_json(layout.launch(TRAINING, 1))["resume"]["step"] == 9
    assert not processes_left(gang.store)


def test_before_a_time_limit_ranks_save_a_checkpoint_and_no_retry_is_used_up(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    gang, file = at_rest(cluster, tmp_path)
    # As Slurm does 90 s before the limit of the job.
    cluster.slurm.ask("scancel", "--signal=USR1", cluster.job())
    gang.said(lambda line: line["generation"] == 1)
    file.touch()
    assert gang.trained() == (10, 2)
    assert [cause for cause, _ in ended(gang)] == ["preempted"]
    assert used(gang) == {}
    assert gang.store.read_json(layout.launch(TRAINING, 1))["resume"]["step"] == 9


def test_a_job_that_a_person_cancels_is_a_cancelled_training(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Slurm signals it as it does one that it preempts."""
    gang, _ = at_rest(cluster, tmp_path)
    cluster.slurm.ask("scancel", cluster.job())
    assert gang.ended()["cause"] == "cancelled"
    assert used(gang) == {}
    until(lambda: not processes_left(gang.store), what=lambda: processes_left(gang.store))


@pytest.mark.sweep
def test_the_warning_comes_before_the_limit(cluster: SlurmCluster, tmp_path: Path) -> None:
    cluster.placement["job_variables"] = {"time": "4"}
    gang, file = at_rest(cluster, tmp_path)
    del cluster.placement["job_variables"]
    gang.said(lambda line: line["generation"] == 1)
    file.touch()
    assert gang.trained()[0] == 10
    assert used(gang) == {}


@pytest.mark.sweep
def test_a_gang_of_which_slurm_has_too_few_machines_trains_on_those(cluster: SlurmCluster, tmp_path: Path) -> None:
    train = {"train": {"global_batch_size": 12}}
    gang = cluster.conduct(tmp_path, LONG, nodes=4, launch={"min_nodes": 2}, **train)
    assert gang.trained() == (20, 1)
    assert sorted(nodes_of(gang.store)) == [0, 1, 2]
    assert "trains on 3 of 4 nodes" in json.dumps(gang.lines())


@pytest.mark.sweep
def test_while_slurmctld_is_restarted_training_goes_on(cluster: SlurmCluster, tmp_path: Path) -> None:
    gang, file = at_rest(cluster, tmp_path)
    cluster.slurm.stop_controller()
    until(lambda: not cluster.slurm.jobs())
    cluster.slurm.start_controller()
    until(cluster.slurm.jobs, what=cluster.slurm.said)
    file.touch()
    assert gang.trained() == (10, 1)


@pytest.mark.sweep
def test_a_job_that_is_suspended_is_preempted(cluster: SlurmCluster, tmp_path: Path) -> None:
    gang, file = at_rest(cluster, tmp_path)
    cluster.slurm.ask("scontrol", "suspend", cluster.job())
    gang.said(lambda line: line["generation"] == 1)
    file.touch()
    assert gang.trained() == (10, 2)
    assert [cause for cause, _ in ended(gang)] == ["preempted"]
    until(lambda: not processes_left(gang.store), what=lambda: processes_left(gang.store))


@pytest.mark.sweep
def test_a_machine_that_is_left_out_gets_no_node(cluster: SlurmCluster, tmp_path: Path) -> None:
    decide(open_store(str(tmp_path / "store")), "n0", drained=True, reason="a test")
    gang = cluster.conduct(tmp_path, LONG, nodes=2)
    assert gang.trained() == (20, 1)
    assert {node.host for node in nodes_of(gang.store).values()} == {"n1", "n2"}


def broken(generation: int) -> list[dict[str, Any]]:
    """Rank 1 says that its device is broken, while rank 0 stands still."""
    common = {"step": 7, "after": 5, "generation": generation, "for": "/nowhere"}
    return [{"kind": "wait", "rank": 0, **common}, {"kind": "broken", "rank": 1, **common}]


@pytest.mark.sweep
def test_in_place_of_a_broken_machine_another_is_asked_for_as_long_as_there_is_one(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    faults = broken(0) + broken(1)
    gang = cluster.conduct(tmp_path, {**LONG, "faults": faults}, nodes=2, retry={"node_lost": 2})
    assert gang.trained() == (20, 4)
    first, second, last = (nodes_of(gang.store, number) for number in (0, 1, 3))
    assert first[1].host not in {node.host for node in second.values()}
    assert [cause for cause, _ in ended(gang)] == ["node_lost", "node_lost", "gang_incomplete"]
    assert len(last) == 2
    assert used(gang) == {"node_lost": 2}


@pytest.mark.apt("slurmdbd")
@pytest.mark.apt("mariadb-server")
@pytest.mark.sweep
def test_with_accounting_a_job_is_charged_as_the_spec_says(tmp_path: Path) -> None:
    cluster = SlurmCluster(accounting=True)
    try:
        placement = {**cluster.placement, "queue": QOS, "labels": {"team": "sight", "project": "digits"}}
        cluster.placement = {**placement, "job_variables": {"account": ACCOUNT}}
        assert cluster.conduct(tmp_path / "a", LONG, nodes=2).trained() == (20, 1)
        asked = ("sacct", "--noheader", "--allocations", "--parsable2", "--format=Account,QOS,Comment,State")
        charged = f"{ACCOUNT}|{QOS}|project=digits,team=sight|COMPLETED"
        until(lambda: charged in cluster.slurm.ask(*asked), what=lambda: cluster.slurm.ask(*asked))
        cluster.placement = {**placement, "job_variables": {"account": "nobody"}}
        last = cluster.conduct(tmp_path / "b", LONG, nodes=2).ended()
        assert (last["cause"], "Invalid account" in last["message"]) == ("usage", True), last
    finally:
        cluster.close()


def test_a_plan_shows_the_job_and_a_pipeline_trains_by_it(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real ranks, from the command line to the promoted model."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    spec = write_project(tmp_path, SPEC)
    by_slurm = ["--set", "train.launcher=slurm", "--set", "train.pool=gpu", "--set", "train.job_variables={comment: x}"]
    plan = trainwright("plan", spec, *by_slurm)
    assert "sbatch --partition=gpu --nodes=1-1 --comment=x" in plan.stdout, plan.stderr
    refused = trainwright("plan", spec, *by_slurm[:-1], "train.job_variables={wrap: x}")
    assert (refused.returncode, "train.job_variables.wrap" in refused.stderr) == (2, True)
    done = trainwright("run", spec, *by_slurm)
    assert done.returncode == 0, done.stderr
    assert "promoted" in done.stdout
