"""What Kubernetes is asked for, and what it says of pods: the real client, against an API server of ours.

(Gangs by it: tests/integration/test_launchers.py and test_kubernetes.py.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from data_contracts.errors import (
    Cancelled,
    NodeLost,
    OutOfMemory,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
)
from data_contracts.messages.children import StoreAddress
from data_contracts.messages.gang import ConductorAddress, Launch, NodeExit
from infra.gang.hub import Ended, News
from infra.gang.membership import Placement
from infra.gang.rank_files import NODE_KEY
from infra.launchers import kubernetes as module
from infra.launchers.kubernetes import KubernetesLauncher, KubernetesNodes, how_ended
from infra.orchestrator.worker import GRACE_S
from infra.store import Store
from tests.support.kube import NAMESPACE, Kubernetes
from tests.support.refusals import refusal
from tests.support.waiting import until

TRAINING = "trainings/k-0"
IMAGE = {"image": "registry.example/trainwright:1"}
VERSION = "1.37.0"


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """A cluster whose pods stay as the test says."""
    kubernetes = Kubernetes(tmp_path)
    kubernetes.runs_pods = False
    monkeypatch.setenv("KUBECONFIG", kubernetes.environment["KUBECONFIG"])
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    monkeypatch.setattr(module, "END_S", 0.2)
    yield kubernetes
    kubernetes.close()


def place(**changes: Any) -> Placement:
    variables = {**IMAGE, **changes.pop("job_variables", {})}
    return Placement(**{"section": "train", "pool": NAMESPACE, "job_variables": variables, **changes})


@pytest.fixture
def nodes(kubernetes: Kubernetes, store: Store) -> Iterator[Callable[..., KubernetesNodes]]:
    """The nodes of a generation of three, unless its launch says otherwise; their hub is told what a test says."""
    made: list[KubernetesNodes] = []

    def make(placement: Placement | None = None, **launch: Any) -> KubernetesNodes:
        hub: Any = type("Hub", (), {"left": set(), "said": [], "news": lambda self: self.said})()
        told = Launch(
            **{"training": TRAINING, "nodes": 3, "devices": 1, **launch},
            conductor=ConductorAddress(address="10.0.0.9", port=20_000, certificate=""),
        )
        made.append(KubernetesLauncher(placement or place())(store, told, hub))
        return made[-1]

    yield make
    for one in made:
        for watch in one._watches:
            watch.stop()


def of(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", **metadata}, "status": status}


def terminated(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": reason}}}]}


def disrupted(why: str, said: str = "", **status: Any) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": why, "message": said}
    return {**terminated(137), "conditions": [condition], **status}


DISK = "The node was low on resource: ephemeral-storage."
ENDS: dict[str, tuple[dict[str, Any], tuple[str, type[TrainwrightError]] | None]] = {
    "it has not begun": ({"phase": "Pending"}, None),
    "it has no status": ({}, None),
    "it runs": ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, None),
    "it ended": ({**terminated(0, "Completed"), "phase": "Succeeded"}, ("with its pod p, with exit code 0", NodeLost)),
    "it failed": (terminated(1), ("ended, with its pod p, with exit code 1", NodeLost)),
    "it was killed": (terminated(137), ("exit code 137", NodeLost)),
    "it could not be started": (terminated(128, "StartError"), ("exit code 128 (StartError)", NodeLost)),
    "it was asked to end": (terminated(143), ("was asked to end", Preempted)),
    "out of memory": (terminated(137, "OOMKilled"), ("more memory than its limit", OutOfMemory)),
    "out of memory, and disrupted": (disrupted("x") | terminated(137, "OOMKilled"), ("more memory", OutOfMemory)),
    "preempted": (
        disrupted("PreemptionByScheduler", "default-scheduler: preempting"),
        ("p was disrupted: PreemptionByScheduler default-scheduler: preempting", Preempted),
    ),
    "drained": (disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), ("EvictionByEvictionAPI", Preempted)),
    "tainted": (disrupted("DeletionByTaintManager"), ("DeletionByTaintManager", Preempted)),
    "its machine is shut down": (
        disrupted("TerminationByKubelet", reason="Terminated"),
        ("disrupted: TerminationByKubelet", Preempted),
    ),
    "the disk is full": (
        disrupted("TerminationByKubelet", reason="Evicted", message=DISK),
        (f"its pod p was evicted: {DISK}", NodeLost),
    ),
    "its machine is gone": (disrupted("DeletionByPodGC"), ("disrupted: DeletionByPodGC", NodeLost)),
    "its machine takes it not": (
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is left"},
        ("its pod p failed: UnexpectedAdmissionError: no GPU is left", NodeLost),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_kubernetes_says_of_a_pod_is_the_cause_of_its_end(name: str) -> None:
    status, wanted = ENDS[name]
    found = how_ended(of(status))
    if wanted is None or found is None:
        assert found is wanted
        return
    assert (wanted[0] in found.how, found.cause) == (True, wanted[1]), found


def test_the_jobset_and_its_secret_are_what_the_controllers_take(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    """By the published schemas of JobSet and of Kubernetes: a field that they do not know would be lost on the way."""
    everything = {
        **{"priority": "high", "topology": "rack", "preferred_topology": "block", "cpu": 8, "memory": "64Gi"},
        **{"node_selector": "pool=h100,zone=a", "gpu_resource": "amd.com/gpu", "service_account": "trainer"},
    }
    placement = place(queue="research", job_variables=everything, devices=8, labels={"team": "vision"})
    for mine in (nodes(placement, left_out=["n1", "n2"]), nodes()):
        jobset = mine.jobset()
        model = JobsetV1alpha2JobSet.from_dict(jobset)
        assert model is not None
        assert model.to_dict() == jobset
        [replicated] = jobset["spec"]["replicatedJobs"]
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "n"}, **replicated["template"]}
        kubernetes_validate.validate(job, VERSION, strict=True)
        kubernetes_validate.validate(mine.secret(), VERSION, strict=True)
        # Pods' names, which are made of it, have 63 characters at most.
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", mine.name)


def test_the_jobset_says_what_the_spec_says(nodes: Callable[..., KubernetesNodes]) -> None:
    placement = place(
        queue="research",
        job_variables={"priority": "high", "topology": "rack", "cpu": 8, "memory": "64Gi", "node_selector": "a=b"},
        devices=8,
        needs_gpus=True,
        labels={"cost centre/": "R&D vision!", "??": "x"},
    )
    jobset = nodes(placement, left_out=["n1", "n2"], nodes=4, grace_s=30.0).jobset()
    assert jobset["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "research",
        "kueue.x-k8s.io/priority-class": "high",
        "cost-centre": "R-D-vision",
    }
    [replicated] = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (4, 4, "Indexed")
    assert (job["backoffLimitPerIndex"], jobset["spec"]["failurePolicy"]["maxRestarts"]) == (0, 0)
    assert job["template"]["metadata"] == {
        "labels": {"app.kubernetes.io/name": "trainwright-node", "cost-centre": "R-D-vision"},
        "annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"},
    }
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "8"},
    }
    assert pod["nodeSelector"] == {"a": "b"}
    assert pod["terminationGracePeriodSeconds"] == 90
    [term] = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [(one["key"], one["operator"], one["values"]) for one in term["matchFields"]] == [
        ("metadata.name", "NotIn", ["n1"]),
        ("metadata.name", "NotIn", ["n2"]),
    ]


def test_a_pod_is_as_restricted_as_one_of_a_work_pool(nodes: Callable[..., KubernetesNodes], repository: Path) -> None:
    template = json.loads((repository / "infra/kubernetes/base-job-template.json").read_text())
    theirs = template["job_configuration"]["job_manifest"]["spec"]["template"]
    [replicated] = nodes().jobset()["spec"]["replicatedJobs"]
    mine = replicated["template"]["spec"]["template"]
    for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "restartPolicy"):
        assert mine["spec"][field] == theirs["spec"][field]
    assert mine["spec"]["containers"][0]["securityContext"] == theirs["spec"]["containers"][0]["securityContext"]
    assert mine["spec"]["containers"][0]["volumeMounts"] == theirs["spec"]["containers"][0]["volumeMounts"]
    # So the network policies of infra/kubernetes/ are for these pods, too.
    assert theirs["metadata"]["labels"].items() <= mine["metadata"]["labels"].items()


def test_what_is_secret_is_in_the_secret_alone(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_ROLE_ARN", "the conductor's own")
    mine = nodes()
    monkeypatch.setattr(Store, "address", StoreAddress(uri="s3://bucket/a", options={}))
    mine.start(range(3))
    secret = kubernetes.objects["secrets"][mine.name]
    key = secret["stringData"][NODE_KEY]
    assert secret["stringData"]["AWS_SECRET_ACCESS_KEY"] == "hidden"
    assert "AWS_ROLE_ARN" not in secret["stringData"]
    jobset = kubernetes.objects["jobsets"][mine.name]
    shown = json.dumps([jobset, kubernetes.objects["pods"]])
    assert "hidden" not in shown
    assert key not in shown
    [owner] = secret["metadata"]["ownerReferences"]
    assert owner["uid"] == jobset["metadata"]["uid"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": 8}, "verify.job_variables.gpus: is not a variable of the launcher kubernetes."),
        ({"cpu": "1\n"}, "verify.job_variables.cpu: is not a variable"),
        ({"image": ""}, "verify.job_variables.image: is missing."),
        ({"node_selector": "h100"}, "verify.job_variables.node_selector: 'h100' is not a list of labels."),
        ({"node_selector": "a=b,"}, "verify.job_variables.node_selector: 'a=b,' is not a list"),
    ],
)
def test_what_the_spec_cannot_ask_for_is_refused_with_its_field(
    given: dict[str, Any], said: str, kubernetes: Kubernetes
) -> None:
    assert refusal(UsageError, KubernetesLauncher, place(section="verify", job_variables=given)).startswith(said)
    assert not kubernetes.asked


def test_without_a_cluster_or_without_jobsets_nothing_begins(
    kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = refusal(UsageError, KubernetesLauncher, place(pool="other"))
    assert said.startswith("The cluster has no JobSets of jobset.x-k8s.io/v1alpha2.")
    kubernetes.refusing = 403
    assert "The cluster does not list JobSets: as the test says" in refusal(UsageError, KubernetesLauncher, place())
    kubernetes.refusing = 503
    with pytest.raises(StorageUnavailable, match="as the test says"):
        KubernetesLauncher(place())
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "There is no cluster to ask" in refusal(UsageError, KubernetesLauncher, place())
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # in a pod that got no token
    assert "There is no cluster to ask" in refusal(UsageError, KubernetesLauncher, place())


def test_a_jobset_is_made_once_even_if_the_answer_was_lost(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    first, again = nodes(), nodes()
    kubernetes.refusing = 503
    with pytest.raises(StorageUnavailable):
        first.start(range(3))
    kubernetes.refusing = None
    for one in (first, first, again):
        one.start(range(3))
    assert (kubernetes.jobsets(), len(kubernetes.objects["pods"])) == ([first.name], 3)
    assert nodes(generation=1).name != first.name


def test_a_gang_waits_in_a_queue_then_for_machines(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.has_kueue = True
    mine = nodes(place(queue="research"))
    assert (mine.waits(), mine.status(0)) == ("", "")
    mine.start(range(3))
    assert mine.waits() == mine.status(0) == f"its JobSet {mine.name} is queued in research"
    kubernetes.admit(mine.name)
    until(lambda: len(mine._pods) == 3)
    assert mine.waits() == ""
    first, second, third = kubernetes.pods(mine.name)
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    kubernetes.set_status(first, {"conditions": [condition]})
    until(lambda: mine.waits() == f"no machine takes its pods: {why}", what=mine.waits)
    # A pod that has a machine holds it while it waits for the others: the roll-call's limit counts.
    bound = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    kubernetes.set_status(second, bound)
    until(lambda: mine.waits() == "", what=mine.waits)
    for name in (first, third):
        kubernetes.set_status(name, bound)
    until(lambda: mine.waits() == "its pods get their image", what=mine.waits)
    monkeypatch.setattr(module, "FETCH_S", 0.0)
    assert mine.waits() == ""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    kubernetes.set_status(second, {"containerStatuses": [{"state": waiting}]})
    until(
        lambda: mine.status(1) == f"its pod {second} is Pending: ImagePullBackOff: no such image",
        what=lambda: mine.status(1),
    )
    kubernetes.set_status(second, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})
    until(lambda: mine.status(1) == f"its pod {second} is Running", what=lambda: mine.status(1))
    assert (mine.waits(), mine.ended()) == ("", {})


def test_where_another_machine_may_never_come_the_roll_calls_limit_counts(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    mine = nodes(left_out=["n1"], withdrawn=["n1"])
    mine.start(range(3))
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none"}
    for name in kubernetes.pods(mine.name):
        kubernetes.set_status(name, {"conditions": [condition]})
    until(lambda: mine.status(2).endswith("Pending: none"), what=lambda: mine.status(2))
    assert mine.waits() == ""


def test_the_jobset_that_a_dead_conductor_left_is_deleted(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    nodes().start(range(3))
    mine = nodes(generation=1)
    mine.start(range(3))
    until(lambda: [*kubernetes.objects["jobsets"]] == [*kubernetes.objects["secrets"]] == [mine.name])


@pytest.mark.parametrize("label", ["", "5000", "x"])
def test_a_pod_that_is_not_ours_is_passed_over(
    label: str, nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    labels = {"jobset.sigs.k8s.io/jobset-name": mine.name, **({module.INDEX: label} if label else {})}
    foreign = {"metadata": {"name": "foreign", "labels": labels}, "spec": {}, "status": {"phase": "Failed"}}
    kubernetes.create("pods", foreign)
    kubernetes.set_status(names[2], {"phase": "Succeeded"})
    until(lambda: 2 in mine.ended())
    assert list(mine.ended()) == [2]


def test_the_end_of_a_pod_is_that_of_our_container() -> None:
    mesh = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    node = {"name": "node", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    found = how_ended(of({"phase": "Failed", "containerStatuses": [mesh, node]}))
    assert found is not None
    assert found.cause is OutOfMemory


def run_all(kubernetes: Kubernetes, mine: KubernetesNodes) -> list[str]:
    mine.start(range(3))
    names = kubernetes.pods(mine.name)
    for name in names:
        kubernetes.set_status(name, {"phase": "Running"})
    until(lambda: all(_is_running(mine._pods.get(node)) for node in range(3)))
    until(lambda: sum("watch=true" in path for _, path in kubernetes.asked) >= 2)
    return names


def _is_running(pod: dict[str, Any] | None) -> bool:
    return pod is not None and pod["status"]["phase"] == "Running"


def test_the_watch_says_what_becomes_of_pods_also_after_it_was_cut_or_is_too_old(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    asked = len(kubernetes.asked)
    kubernetes.set_status(names[0], terminated(1))
    until(lambda: 0 in mine.ended())
    assert len(kubernetes.asked) == asked, "nothing was asked for that"
    kubernetes.cut_watches()
    kubernetes.set_status(names[1], terminated(137, "OOMKilled"))
    until(lambda: 1 in mine.ended())
    kubernetes.forget()
    kubernetes.lose_pod(names[2])
    kubernetes.forget()
    until(lambda: 2 in mine.ended())
    assert [mine.ended()[node].cause for node in range(3)] == [NodeLost, OutOfMemory, NodeLost]
    assert mine.ended()[2].how == f"ended, because its pod {names[2]} was deleted"
    lists = [path for method, path in kubernetes.asked if "watch=true" not in path and "/pods?labelSelector" in path]
    assert len(lists) > 1, "it was listed again"


def test_an_outage_of_the_api_ends_nothing_and_is_said_once(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    kubernetes.refusing = 503
    kubernetes.cut_watches()
    asked = len(kubernetes.asked)
    until(lambda: "does not say what becomes of the pods: as the test says" in caplog.text, what=lambda: caplog.text)
    assert mine.ended() == {}
    assert len(kubernetes.asked) < asked + 50
    kubernetes.refusing = None
    kubernetes.set_status(names[0], terminated(1))
    until(lambda: 0 in mine.ended())
    assert caplog.text.count("does not say what becomes of the pods") <= 2, "one for each watch"


def preempted(node: int) -> News:
    return News(node, 0.0, NodeExit(status="failed", error=Preempted("asked to stop").to_json()))


WILLS: dict[str, tuple[Callable[[Kubernetes, str], None], type[TrainwrightError], str]] = {
    "a person deletes it": (lambda cluster, name: cluster.delete(name), Cancelled, "was deleted"),
    "in the foreground": (lambda cluster, name: cluster.delete(name, "Foreground"), Cancelled, "was deleted"),
    "Kueue takes its machines": (lambda cluster, name: cluster.suspend(name), Preempted, "was suspended"),
}


@pytest.mark.parametrize("name", WILLS)
def test_what_becomes_of_the_jobset_is_the_cause(
    name: str, nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    act, cause, said = WILLS[name]
    mine = nodes()
    run_all(kubernetes, mine)
    act(kubernetes, mine.name)
    hub: Any = mine.hub
    hub.said, hub.left = [preempted(0)], {0}
    [first] = [one for one in mine.news() if one.node == 0]
    assert isinstance(first.message, Ended if cause is Cancelled else NodeExit)
    until(lambda: len(mine.ended()) == 3, what=mine.ended)
    for ended in mine.ended().values():
        assert (said in ended.how, ended.cause) == (True, cause)


def test_a_node_that_is_asked_to_stop_is_preempted_if_nobody_deleted_the_jobset(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes
) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    kubernetes.disrupt(names[0], "PreemptionByScheduler", "for another")
    hub: Any = mine.hub
    hub.said, hub.left = [preempted(0)], {0}
    assert mine.news()[0] == preempted(0)
    until(lambda: 0 in mine.ended())
    assert mine.ended()[0].cause in (Preempted, NodeLost)


def test_some_nodes_end_alone_and_all_end_with_the_jobset(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    mine.end([2])
    assert (kubernetes.pods(mine.name), kubernetes.jobsets()) == (names[:2], [mine.name])
    mine.end(range(3))
    until(lambda: kubernetes.jobsets() == [] and not kubernetes.objects["secrets"])
    assert kubernetes.pods(mine.name) == []
    assert {found.cause for found in mine.ended().values()} == {NodeLost}, "we ended it: nobody cancelled"
    until(lambda: not any(watch.is_alive() for watch in mine._watches))
    assert "did not end" not in caplog.text


def test_pods_that_kubernetes_does_not_end_are_said(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "KILL_S", 0.5)
    mine = nodes()
    names = run_all(kubernetes, mine)
    kubernetes.refusing = 503
    mine.end(range(3))
    assert f"Kubernetes did not end the pods {', '.join(names)}" in caplog.text


def test_the_end_of_a_log_is_that_of_the_pod(nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    assert mine.log(0) == ""
    (kubernetes.folder / f"{names[0]}.log").write_text("begun\nModuleNotFoundError: No module named 'x'\n")
    assert mine.log(0).endswith("No module named 'x'")
    kubernetes.refusing = 500
    assert mine.log(0) == mine.log(7) == ""


def test_the_conductors_role_allows_what_it_asks_for_and_nothing_else(
    nodes: Callable[..., KubernetesNodes], kubernetes: Kubernetes, repository: Path
) -> None:
    mine = nodes()
    names = run_all(kubernetes, mine)
    mine.log(0)
    mine._look()
    kubernetes.lose_pod(names[0])
    mine.end([1])
    mine.end(range(3))
    text = (repository / "infra/kubernetes/conductor.yaml").read_text()
    [role] = [one for one in yaml.safe_load_all(text) if one["kind"] == "Role"]
    allowed = {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
    assert {verb_of(method, path) for method, path in kubernetes.asked} == allowed


def verb_of(method: str, path: str) -> tuple[str, str]:
    """The resource and the verb of a request, as roles name them."""
    parts, _, query = path.partition("?")
    kind, _, rest = parts.partition(f"/{NAMESPACE}/")[2].partition("/")
    name, _, sub = rest.partition("/")
    if method == "GET":
        verb = "watch" if "watch=true" in query else "get" if name else "list"
    else:
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete" if name else "deletecollection"}[method]
    return (f"{kind}/{sub}" if sub else kind), verb


def test_the_conductor_is_a_deployment_as_restricted_as_its_nodes(
    nodes: Callable[..., KubernetesNodes], repository: Path
) -> None:
    folder = repository / "infra/kubernetes"
    manifests = {one["kind"]: one for one in yaml.safe_load_all((folder / "conductor.yaml").read_text())}
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    template = manifests["Deployment"]["spec"]["template"]
    [replicated] = nodes().jobset()["spec"]["replicatedJobs"]
    node = replicated["template"]["spec"]["template"]["spec"]
    pod = template["spec"]
    assert pod["securityContext"] == node["securityContext"]
    assert pod["containers"][0]["securityContext"] == node["containers"][0]["securityContext"]
    assert pod["serviceAccountName"] == manifests["ServiceAccount"]["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] > GRACE_S
    policy = yaml.safe_load((folder / "conductor-network-policy.yaml").read_text())
    assert policy["spec"]["podSelector"]["matchLabels"] == template["metadata"]["labels"]
