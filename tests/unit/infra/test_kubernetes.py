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
from prefect.utilities.templating import apply_values

VERSIONS = ("1.34.0", "1.37.0")
# What the launcher gives a node's run, and Prefect its worker.
GIVEN: dict[str, Any] = {
    "image": "registry.example/trainwright:1",
    "name": "ab12-g0-node-1",
    "labels": {"team": "vision", "cost-center": "42"},
    "env": {"TRAINWRIGHT_STORE_OPTIONS": "{}", "PREFECT_API_URL": "http://prefect:4200/api"},
    "command": "prefect flow-run execute",
}


@pytest.fixture
def template(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((repository / "infra/kubernetes/base-job-template.json").read_text())
    return found


@pytest.fixture
def conductor(repository: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((repository / "infra/kubernetes/conductor-job-template.json").read_text())
    return found


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
    assert [one["name"] for one in container["env"]] == [*GIVEN["env"], "TRAINWRIGHT_ADDRESS"]


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
def test_a_pod_can_be_reached_by_its_like_alone(version: str, template: dict[str, Any], repository: Path) -> None:
    policy = yaml.safe_load((repository / "infra/kubernetes/network-policy.yaml").read_text())
    kubernetes_validate.validate(policy, version, strict=True)
    labels = rendered(template)["spec"]["template"]["metadata"]["labels"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected
    assert selected.items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    # One rule with one peer: without a namespace selector it means pods of this namespace alone.
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]


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


def test_what_kubernetes_does_not_know_is_found(template: dict[str, Any]) -> None:
    template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]["parallelism"] = 1
    with pytest.raises(ValidationError):
        kubernetes_validate.validate(rendered(template), VERSIONS[0], strict=True)


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
    assert mine.keys() == node.keys() - {"subdomain", "tolerations"}
    for field in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "serviceAccountName"):
        assert mine[field] == node[field]
    assert mine["containers"][0]["securityContext"] == node["containers"][0]["securityContext"]
    assert {volume["name"] for volume in mine["volumes"]} == {"scratch", "temporary"}
    gone = {"gpus", "shared_memory"}
    assert conductor["variables"]["properties"].keys() == template["variables"]["properties"].keys() - gone


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_connects_to_a_conductor(version: str, conductor: dict[str, Any], repository: Path) -> None:
    policy = yaml.safe_load((repository / "infra/kubernetes/conductor-network-policy.yaml").read_text())
    kubernetes_validate.validate(policy, version, strict=True)
    labels = rendered(conductor)["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert (policy["spec"]["policyTypes"], policy["spec"].get("ingress")) == (["Ingress"], None)
