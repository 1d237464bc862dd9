"""A gang as the pods of JobSets: what becomes of them is what becomes of its training.

The client and the processes of the pods are real; API server and controllers are ours (`tests/support/kube.py`).
What is the same with every launcher is in `test_launchers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store import layout
from tests.support.clusters import KubernetesCluster, at_rest, ended, processes_left, used
from tests.support.conducted import Conducted
from tests.support.conducting import TRAINING
from tests.support.kube import NAMESPACE
from tests.support.tiny import SPEC, trainwright, write_project
from tests.support.waiting import until

pytestmark = pytest.mark.warm


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubernetesCluster]:
    (tmp_path / "cluster").mkdir()
    cluster = KubernetesCluster(tmp_path / "cluster")
    try:
        yield cluster
    finally:
        cluster.close()


def resumed_from(gang: Conducted) -> int:
    return gang.store.read_json(layout.launch(TRAINING, 1))["resume"]["step"]


def test_a_gang_waits_in_kueues_queue_and_goes_back_there_when_it_is_preempted(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    kubernetes = cluster.kubernetes
    kubernetes.has_kueue = True
    cluster.placement = {**cluster.placement, "queue": "research"}
    file = tmp_path / "go"
    gang = cluster.conduct(tmp_path, {"steps": 10, "every": 5, "until": str(file)}, nodes=2)
    waits = gang.said(lambda line: line["sentence"])
    [first] = kubernetes.jobsets()
    assert waits["sentence"] == f"waiting: its JobSet {first} is queued in research"
    kubernetes.admit(first)
    gang.said(lambda line: line["checkpoint_step"] == 5)
    until(lambda: all(gang.steps().get((0, rank), [0])[-1] == 9 for rank in range(2)), what=gang.lines)
    kubernetes.suspend(first)
    gang.said(lambda line: line["generation"] == 1 and "is queued in research" in line["sentence"])
    [second] = kubernetes.jobsets()
    kubernetes.admit(second)
    file.touch()
    assert gang.trained() == (10, 2)
    assert [cause for cause, _ in ended(gang)] == ["preempted"]
    assert (used(gang), resumed_from(gang)) == ({"preempted": 1}, 9)
    assert not processes_left(gang.store)
    assert kubernetes.objects == {"pods": {}, "secrets": {}, "jobsets": {}}


def test_a_pod_that_is_evicted_saves_a_checkpoint_with_the_others(cluster: KubernetesCluster, tmp_path: Path) -> None:
    gang, file = at_rest(cluster, tmp_path, nodes=2)
    kubernetes = cluster.kubernetes
    [name] = kubernetes.jobsets()
    for pod in kubernetes.pods(name):
        kubernetes.disrupt(pod, "EvictionByEvictionAPI", "Eviction API: evicting")
    gang.said(lambda line: line["generation"] == 1)
    file.touch()
    assert gang.trained() == (10, 2)
    assert [cause for cause, _ in ended(gang)] == ["preempted"]
    assert (used(gang), resumed_from(gang)) == ({"preempted": 1}, 9)


FATES: dict[str, tuple[str, str, dict[str, int]]] = {
    "OOMKilled": ("out_of_memory", "used more memory than its limit", {"oom": 1}),
    "Error": ("node_lost", "with exit code 137", {"node_lost": 1}),
}


@pytest.mark.parametrize("reason", [pytest.param(name, marks=pytest.mark.sweep) for name in FATES])
def test_a_pod_that_says_nothing_ends_as_kubernetes_says(
    reason: str, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    cause, said, budget = FATES[reason]
    gang, file = at_rest(cluster, tmp_path, nodes=2, train={"global_batch_size": 24})
    kubernetes = cluster.kubernetes
    [name] = kubernetes.jobsets()
    kubernetes.kill(kubernetes.pods(name)[1], reason)
    gang.said(lambda line: line["generation"] == 1)
    file.touch()
    assert gang.trained() == (10, 2)
    [(found, sentence)] = ended(gang)
    assert (found, said in sentence) == (cause, True), sentence
    assert (used(gang), resumed_from(gang)) == (budget, 5)


def test_training_goes_on_while_the_api_server_is_away(cluster: KubernetesCluster, tmp_path: Path) -> None:
    """And what happened to a pod meanwhile is known afterwards."""
    gang, file = at_rest(cluster, tmp_path, nodes=2)
    kubernetes = cluster.kubernetes
    cluster.restart()
    file.touch()
    assert gang.trained() == (10, 1)
    until(lambda: kubernetes.objects == {"pods": {}, "secrets": {}, "jobsets": {}})
    watched = [path for method, path in kubernetes.asked if method == "GET" and "watch" not in path]
    assert len(watched) < 20, "the API was asked again and again"


@pytest.mark.sweep
def test_a_pipeline_trains_by_it(cluster: KubernetesCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ranks, from the command line to the promoted model."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    spec = write_project(tmp_path, SPEC)
    placed = ["--set", "train.launcher=kubernetes", "--set", f"train.pool={NAMESPACE}"]
    refused = trainwright("plan", spec, *placed)
    assert (refused.returncode, "train.job_variables.image: is missing" in refused.stderr) == (2, True), refused.stderr
    placed += ["--set", "train.job_variables={image: trainwright, gpu_resource: example.com/gpu}"]
    plan = trainwright("plan", spec, *placed)
    asked = f"a JobSet in {NAMESPACE}, pods: 1, each image=trainwright, "
    assert asked in plan.stdout, plan.stderr
    assert "example.com/gpu=1" in plan.stdout
    done = trainwright("run", spec, *placed)
    assert done.returncode == 0, done.stderr
    assert "promoted" in done.stdout
    assert any(path.endswith("/jobsets") and method == "POST" for method, path in cluster.kubernetes.asked)
