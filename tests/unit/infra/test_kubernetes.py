"""The job templates of the Kubernetes pools: rendered as Prefect's worker does, held against Kubernetes' schemas."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import ValidationError
from prefect.logging.configuration import DEFAULT_LOGGING_SETTINGS_PATH, load_logging_config
from prefect.utilities.templating import apply_values

from infra import traces as telemetry
from infra.gang.ranks import _PORTS
from infra.orchestrator.serve import addresses
from infra.orchestrator.worker import GRACE_S
from infra.records import nodes
from infra.telemetry import LOG_FORMAT, json_asked

VERSIONS = ["1.37.0", pytest.param("1.34.0", marks=pytest.mark.sweep)]
# Our variables' names, as the code reads them.
NODE, METRICS_PUSH = nodes.NODE, telemetry.METRICS_PUSH
# The two variables that make Prefect's worker name a secret in place of the server's password.
WORKER = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_"
# What the launcher gives a node's run, and Prefect its worker.
GIVEN: dict[str, Any] = {
    "image": "registry.example/trainwright:1",
    "name": "ab12-g0-node-1",
    "labels": {"team": "vision", "cost-center": "42"},
    "env": {"TRAINWRIGHT_STORE_OPTIONS": "{}", "PREFECT_API_URL": "http://prefect:4200/api"},
}


@pytest.fixture
def template(repository: Path) -> dict[str, Any]:
    return json.loads((repository / "infra/kubernetes/base-job-template.json").read_text())


@pytest.fixture
def conductor(repository: Path) -> dict[str, Any]:
    return json.loads((repository / "infra/kubernetes/conductor-job-template.json").read_text())


def rendered(template: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The job that `prefect-kubernetes` makes of the template: env and labels are merged into the manifest."""
    properties = template["variables"]["properties"]
    values = {name: one["default"] for name, one in properties.items() if "default" in one} | GIVEN | given
    manifest: dict[str, Any] = apply_values(copy.deepcopy(template["job_configuration"]), values)["job_manifest"]
    [container] = manifest["spec"]["template"]["spec"]["containers"]
    given_env = [{"name": name, "value": value} for name, value in values["env"].items()]
    container["env"] = [*given_env, *container.get("env", [])]
    container["args"] = values["command"].split()
    for metadata in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        metadata["labels"] = {**metadata["labels"], **values["labels"]}
    return manifest


@pytest.mark.parametrize("version", VERSIONS)
def test_the_job_is_what_kubernetes_takes(version: str, template: dict[str, Any]) -> None:
    job = rendered(template, gpus=8, queue="research", node_selector={"pool": "h100"})
    kubernetes_validate.validate(job, version, strict=True)
    pod = job["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research", "team": "vision", "cost-center": "42"}
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert (job["spec"]["backoffLimit"], pod["spec"]["restartPolicy"]) == (0, "Never")
    [shared] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "shared-memory"]
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
    own = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"] if "valueFrom" in one}
    assert own == {"TRAINWRIGHT_ADDRESS": "status.podIP", NODE: "spec.nodeName"}
    assert [one["name"] for one in container["env"]] == [*GIVEN["env"], *own, LOG_FORMAT]
    pod["spec"]["parallelism"] = 1
    with pytest.raises(ValidationError):  # so this does find what Kubernetes does not know
        kubernetes_validate.validate(job, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rendezvous_has_a_headless_service_that_finds_the_pods(
    version: str, template: dict[str, Any], repository: Path
) -> None:
    service = yaml.safe_load((repository / "infra/kubernetes/rendezvous.yaml").read_text())
    kubernetes_validate.validate(service, version, strict=True)
    pod = rendered(template)["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_of_a_gang_can_be_reached_by_nodes_alone_and_a_conductor_only_at_its_hub(
    version: str, template: dict[str, Any], conductor: dict[str, Any], repository: Path
) -> None:
    for name, job in (("network-policy", template), ("conductor-network-policy", conductor)):
        policy = yaml.safe_load((repository / f"infra/kubernetes/{name}.yaml").read_text())
        kubernetes_validate.validate(policy, version, strict=True)
        selected = policy["spec"]["podSelector"]["matchLabels"]
        assert selected
        assert selected.items() <= rendered(job)["spec"]["template"]["metadata"]["labels"].items()
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        # One rule with one peer: without a namespace selector it means pods of this namespace alone.
        node = rendered(template)["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        rule: dict[str, Any] = {"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": node}}}]}
        if job is conductor:
            rule["ports"] = [{"protocol": "TCP", "port": min(_PORTS), "endPort": max(_PORTS)}]
        assert policy["spec"]["ingress"] == [rule]


def test_a_pod_is_as_restricted_as_kubernetes_knows(template: dict[str, Any], repository: Path) -> None:
    """Kubernetes' Pod Security Standard `restricted`, and what it leaves to its users."""
    pod = rendered(template)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    user = pod["securityContext"]
    assert user["runAsNonRoot"] is True
    assert f"\nUSER {user['runAsUser']}\n" in (repository / "infra/docker/Dockerfile").read_text()
    assert user["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(set(volume) - {"name"} == {"emptyDir"} for volume in pod["volumes"])
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/dev/shm", "/scratch", "/tmp"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("which", ["template", "conductor"])
def test_every_variable_is_used_and_every_placeholder_is_a_variable(which: str, request: pytest.FixtureRequest) -> None:
    template = request.getfixturevalue(which)
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert used == set(template["variables"]["properties"])
    assert all(one.get("description") for one in template["variables"]["properties"].values())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_conductor_is_a_job_without_devices(
    version: str, template: dict[str, Any], conductor: dict[str, Any]
) -> None:
    job = rendered(conductor, cpus="4")
    kubernetes_validate.validate(job, version, strict=True)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"] == {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}
    assert (job["spec"]["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    node = rendered(template)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > node["terminationGracePeriodSeconds"], "it waits for its nodes' end"


def test_a_conductor_differs_from_a_node_only_where_it_needs_less(
    template: dict[str, Any], conductor: dict[str, Any]
) -> None:
    node, mine = (rendered(one, name="n")["spec"]["template"]["spec"] for one in (template, conductor))
    environments = [{entry["name"] for entry in pod["containers"][0]["env"]} for pod in (node, mine)]
    assert [names - GIVEN["env"].keys() for names in environments] == [
        {"TRAINWRIGHT_ADDRESS", NODE, LOG_FORMAT},
        {NODE, METRICS_PUSH, LOG_FORMAT},
    ]
    assert mine.keys() == node.keys() - {"subdomain", "tolerations"}
    for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "serviceAccountName"):
        assert mine[field] == node[field]
    assert mine["containers"][0]["securityContext"] == node["containers"][0]["securityContext"]
    assert {volume["name"] for volume in mine["volumes"]} == {"scratch", "temporary"}
    gone, new = {"gpus", "shared_memory"}, {"metrics_push"}
    assert conductor["variables"]["properties"].keys() == template["variables"]["properties"].keys() - gone | new


def test_what_the_pages_say_of_a_pod_is_so(template: dict[str, Any], conductor: dict[str, Any]) -> None:
    """docs/operating.md, "Kubernetes", sentence by sentence, where no other test here holds it."""
    pod, mine = (rendered(one, name="n")["spec"]["template"]["spec"] for one in (template, conductor))
    [container] = pod["containers"]
    assert {"name": "scratch", "emptyDir": {"sizeLimit": "100Gi"}} in pod["volumes"], "a disk for copies"
    assert pod["terminationGracePeriodSeconds"] == 45
    assert container["envFrom"] == [{"secretRef": {"name": "trainwright", "optional": True}}]
    assert mine["containers"][0]["args"] == container["args"] == ["python", "-P", "-m", "infra.orchestrator.worker"]
    assert mine["terminationGracePeriodSeconds"] > GRACE_S, "a run is given to a worker again before it is killed"
    pushed = rendered(conductor, name="n", metrics_push="http://pushgateway:9091")["spec"]["template"]["spec"]
    assert {"name": METRICS_PUSH, "value": "http://pushgateway:9091"} in pushed["containers"][0]["env"]


FOR_OPERATORS = ("database", "server", "worker")


@pytest.fixture
def manifests(repository: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What an operator applies, by kind and name."""
    texts = [(repository / f"infra/kubernetes/{name}.yaml").read_text() for name in FOR_OPERATORS]
    loaded = [manifest for text in texts for manifest in yaml.safe_load_all(text)]
    return {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in loaded}


def pods(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: one["spec"]["template"] for (_, name), one in manifests.items() if "template" in one.get("spec", {})}


@pytest.mark.parametrize("version", VERSIONS)
def test_database_server_and_worker_are_what_kubernetes_takes(
    version: str, manifests: dict[tuple[str, str], dict[str, Any]]
) -> None:
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    for (kind, name), manifest in manifests.items():
        labels = pods(manifests)[name]["metadata"]["labels"] if name in pods(manifests) else {}
        if kind == "Service":
            [port] = manifest["spec"]["ports"]
            assert manifest["spec"]["selector"] == labels
            assert port["port"] in [
                one["containerPort"] for one in pods(manifests)[name]["spec"]["containers"][0]["ports"]
            ]
        if kind == "NetworkPolicy":
            assert manifest["spec"]["podSelector"]["matchLabels"] == labels
            assert manifest["spec"]["policyTypes"] == ["Ingress"]


def test_the_operators_pods_are_as_restricted_as_those_of_runs(
    template: dict[str, Any], manifests: dict[tuple[str, str], dict[str, Any]]
) -> None:
    node = rendered(template, name="n")["spec"]["template"]["spec"]
    assert pods(manifests).keys() == {f"trainwright-{name}" for name in FOR_OPERATORS}
    for name, template_ in pods(manifests).items():
        pod = template_["spec"]
        assert pod["enableServiceLinks"] is False
        assert pod.get("automountServiceAccountToken") is (None if name == "trainwright-worker" else False)
        assert {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}.items() <= pod[
            "securityContext"
        ].items()
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            assert container["securityContext"] == node["containers"][0]["securityContext"]
            named = {mount["name"] for mount in container["volumeMounts"]}
            assert named <= {volume["name"] for volume in pod["volumes"]} | {"data"}
    who = {name: one["spec"].get("ingress") for (kind, name), one in manifests.items() if kind == "NetworkPolicy"}
    server = {"podSelector": {"matchLabels": pods(manifests)["trainwright-server"]["metadata"]["labels"]}}
    assert who == {
        "trainwright-database": [{"from": [server], "ports": [{"port": 5432}]}],
        "trainwright-server": [{"from": [{"podSelector": {}}], "ports": [{"port": 4200}]}],
        "trainwright-worker": None,
    }


def test_all_pods_log_in_json(
    template: dict[str, Any],
    conductor: dict[str, Any],
    manifests: dict[tuple[str, str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = [rendered(one, name="n")["spec"]["template"] for one in (template, conductor)]
    for pod in [*ours, pods(manifests)["trainwright-server"]]:
        [container] = pod["spec"]["containers"]
        assert json_asked({entry["name"]: entry.get("value", "") for entry in container["env"]})
    for container in pods(manifests)["trainwright-worker"]["spec"]["containers"]:  # Prefect's image has only Prefect
        [entry] = [entry for entry in container["env"] if entry["name"].startswith("PREFECT_LOGGING")]
        monkeypatch.setenv(entry["name"], entry["value"])
        console = load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH)["handlers"]["console"]
        assert console["formatter"] == "json"


def test_a_worker_serves_both_pools_with_the_password_from_a_secret(
    manifests: dict[tuple[str, str], dict[str, Any]], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs/operating.md").read_text()
    server = pods(manifests)["trainwright-server"]["spec"]
    workers = pods(manifests)["trainwright-worker"]["spec"]["containers"]
    asked = [re.search(r"work-pool create (\w+)", line) for line in page.splitlines() if "--type kubernetes" in line]
    assert sorted(one["name"] for one in workers) == sorted(found[1] for found in asked if found)
    locked = re.search(r"^prefect==(.*)$", (repository / "requirements.lock").read_text(), re.MULTILINE)
    monkeypatch.setattr("socket.gethostname", lambda: server["hostname"])
    for worker in workers:
        assert worker["args"][-2:] == ["--pool", worker["name"]]
        assert f":{locked[1]}-" in worker["image"]
        env = {entry["name"]: entry for entry in worker["env"]}
        called = env["PREFECT_API_URL"]["value"].removeprefix("http://").removesuffix("/api")
        assert called in addresses("0.0.0.0", 4200), "the server answers to this name"
        secret = {"name": env[f"{WORKER}NAME"]["value"], "key": env[f"{WORKER}KEY"]["value"]}
        assert env["PREFECT_API_AUTH_STRING"]["valueFrom"] == {"secretKeyRef": secret}
    keys = set(re.findall(r"key: ([A-Z_]+)\}", str(manifests).replace("'", "")))
    assert keys == {"DATABASE_PASSWORD", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_CONNECTION_URL"}
    assert [key for key in keys if f"{key}=" not in page] == [], "the page says how the secret is made"


def test_a_worker_may_start_and_end_jobs_in_its_namespace_and_no_more(
    manifests: dict[tuple[str, str], dict[str, Any]],
) -> None:
    assert not [kind for kind, _ in manifests if kind.startswith("Cluster")]
    rules = manifests["Role", "trainwright-worker"]["rules"]
    assert {one for rule in rules for one in rule["resources"]} == {"jobs", "pods", "pods/log", "pods/status", "events"}
    verbs = {tuple(rule["resources"]): set(rule["verbs"]) for rule in rules}
    assert verbs.pop(("jobs",)) == {"create", "delete", "get", "list", "watch", "patch"}
    assert all(others == {"get", "list", "watch"} for others in verbs.values())
    assert pods(manifests)["trainwright-worker"]["spec"]["serviceAccountName"] == "trainwright-worker"
