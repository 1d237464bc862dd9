"""Run a gang's nodes as the pods of a JobSet, one JobSet for each generation: the launcher `kubernetes`.

Kueue, where a queue is named, admits all pods of a JobSet, or none. A pod's container is the node's supervisor (this
module, in the image that the spec names). The cluster's watch API says what becomes of the pods: nothing is asked for
again and again. The reasons that Kubernetes knows become our causes: preempted, evicted, out of memory, lost.

The controllers start nothing a second time: no restart of a container, a pod, a job or a JobSet. What follows a lost
node, the conductor decides, and a new generation is a new JobSet. The conductor runs in the cluster, or where its pods
reach it (`TRAINWRIGHT_ADDRESS`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import Cancelled, OutOfMemory, Preempted, StorageUnavailable, UsageError, from_json
from data_contracts.messages.gang import Launch, NodeExit
from infra import scratch
from infra.child import LOG_TAIL_BYTES
from infra.gang import supervisor
from infra.gang.hub import Ended, Hub, News
from infra.gang.membership import Membership, Placement, SlotReservation
from infra.gang.node import own_address
from infra.gang.rank_files import NODE_KEY, SCRATCH, generation_key, launch_key, store_env
from infra.processes.environment import needed_values
from infra.processes.processes import module_command, uninterrupted
from infra.store import Store

# Nodes that have been told to end get this long to say how; then their pods are deleted, and killed GRACE_S later.
END_S, KILL_S, GRACE_S = 8.0, 30.0, 5
# How long the API may take to connect, and to answer.
TIMEOUT_S = (5.0, 30.0)
# A watch is opened anew after so long, so that a connection that leads nowhere is noticed; or AGAIN_S after it broke.
WATCH_S, AGAIN_S = 120, 1.0
# What Kubernetes says of a container whose image is fetched, and for how long that is waited for.
FETCHING, FETCH_S = "ContainerCreating", 1_200.0
# Seconds for which the cluster keeps a JobSet whose conductor cannot delete it, after its end.
KEPT_S = 3600
LOG_LINES = 200
GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
INDEX = "batch.kubernetes.io/job-completion-index"
# Set by the Job's controller in each container.
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
TOPOLOGY, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
# What `job_variables` may hold, with the defaults.
VARIABLES: Mapping[str, str] = {
    "image": "",
    "image_pull_policy": "IfNotPresent",
    "service_account": "default",
    "priority": "",
    "topology": "",
    "preferred_topology": "",
    "cpu": "",
    "memory": "",
    "gpu_resource": "nvidia.com/gpu",
    "node_selector": "",
    "scratch": "100Gi",
    "shared_memory": "16Gi",
}
# The name of the container in infra/kubernetes/node-pod.json, and of the replicated job.
CONTAINER, REPLICATED = "node", "nodes"
# A pod's own role at its cloud, which is not the conductor's.
_OF_POD = ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_", "AWS_CONTAINER_")
SIGTERM_CODE = 143
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# Labels that a job's controller sets.
_OF_JOB = frozenset(("controller-uid", "job-name"))
Object = Mapping[str, Any]

log = logging.getLogger("trainwright")


class KubernetesLauncher:
    """Makes a JobSet for each generation of a training, in a namespace; a `queue` is a LocalQueue of Kueue.

    Raises: UsageError if there is no cluster with JobSets, or a job variable is none of VARIABLES.
    """

    slots: SlotReservation | None = None  # Kueue admits

    def __init__(self, placement: Placement) -> None:
        self.placement, self.variables = placement, _variables(placement)
        self.cluster = Cluster(placement.pool)
        self.cluster.check()
        self.address = own_address([self.cluster.host])

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> KubernetesNodes:
        """The nodes of a generation."""
        return KubernetesNodes(store, launch, hub, self)

    def in_words(self, nodes: int) -> str:
        """What a JobSet asks for, whatever the generation."""
        placement, gpus = self.placement, gpus_of(self.placement, self.variables)
        queue = {"queue": placement.queue} if placement.queue else {}
        asked = {**queue, **{name: value for name, value in self.variables.items() if value}, **gpus}
        each = ", ".join(f"{name}={value}" for name, value in asked.items() if name != "gpu_resource")
        return f"a JobSet in {placement.pool}, pods: {nodes}, each {each}"


class KubernetesNodes(Membership):
    """The nodes of a generation as the pods of a JobSet; a pod's index is the node's number."""

    def __init__(self, store: Store, launch: Launch, hub: Hub, launcher: KubernetesLauncher) -> None:
        super().__init__(store, launch, hub)
        self.placement, self.variables, self.cluster = launcher.placement, launcher.variables, launcher.cluster
        self.name = self._name(launch.generation)
        self._jobset: Object | None = None
        self._is_gone = self._is_ending = False
        self._pods: dict[int, Object] = {}
        self._ends: dict[int, Ended] = {}
        self._deleted: set[int] = set()
        self._watches: list[Watched] = []
        self._fetching_since: float | None = None

    def start(self, nodes: Collection[int]) -> None:
        """Make the JobSet and its secret. Machines that are left out get no pod, so no node needs another instead."""
        if self._watches:
            return
        with uninterrupted():  # a signal in between would leave what nobody deletes
            if self.launch.generation:  # whose conductor may have died while its JobSet was in the queue
                self.cluster.delete_jobset(self._name(self.launch.generation - 1))
            self._jobset = self.cluster.make(self.jobset(), self.secret())
        jobset = partial(self.cluster.list_jobsets, field_selector=f"metadata.name={self.name}")
        pods = partial(self.cluster.list_pods, label_selector=f"{OF_JOBSET}={self.name}")
        self._watches = [Watched(jobset, self._hear_jobset), Watched(pods, self._hear_pod)]
        for watch in self._watches:
            watch.start()

    def _name(self, generation: int) -> str:
        training = self.launch.training
        which = digest([self.store.uri, training, generation])[:8]
        word = re.sub("[^a-z0-9]+", "-", training.rpartition("/")[2].lower())[:12].strip("-")
        return f"tw-{word}-g{generation}-{which}"

    def ended(self) -> Mapping[int, Ended]:
        """Nodes whose pods have ended; those that have none, once there will be none."""
        fate = self._fate()
        if fate is None:
            return dict(self._ends)
        return {**{node: fate for node in range(self.launch.nodes) if not self._is_alive(node)}, **self._ends}

    def news(self) -> list[News]:
        """What has come. Nodes that were asked to stop are cancelled if a person has deleted their JobSet."""
        found = super().news()
        if not any(_is_preempted(one.message) for one in found):
            return found
        self._look()
        fate = self._fate()
        if fate is None or fate.cause is not Cancelled:
            return found
        return [one._replace(message=fate) if _is_preempted(one.message) else one for one in found]

    def waits(self) -> str:
        """The JobSet's place in Kueue's queue, or what the scheduler says, until a pod has a machine; then for a while
        that images are fetched.
        """
        pods = list(self._pods.values())
        if self._jobset is None or any(_phase(pod) != "Pending" for pod in pods):
            return ""
        if _is_suspended(self._jobset) and not pods:
            where = f"queued in {self.placement.queue}" if self.placement.queue else "suspended"
            return f"its JobSet {self.name} is {where}"
        reasons = [reason for pod in pods if (reason := _unschedulable(pod))]
        if reasons:
            # Pods that have machines hold them. And in place of a broken machine there may be no other.
            are_unbound = not any(_condition(pod, "PodScheduled") for pod in pods)
            return f"no machine takes its pods: {reasons[0]}" if are_unbound and not self.launch.withdrawn else ""
        states = {_container(pod, "waiting").get("reason", FETCHING) for pod in pods}
        are_bound = len(pods) == self.launch.nodes and all(_condition(pod, "PodScheduled") for pod in pods)
        if not are_bound or states != {FETCHING}:
            return ""
        self._fetching_since = self._fetching_since or time.monotonic()
        return "its pods get their image" if time.monotonic() < self._fetching_since + FETCH_S else ""

    def status(self, node: int) -> str:
        """What Kubernetes says of the node's pod."""
        pod = self._pods.get(node)
        if pod is None:
            return self.waits() or (f"the JobSet {self.name} has no pod for it" if self._jobset else "")
        waiting = _container(pod, "waiting")  # such as for an image that cannot be fetched
        why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
        said = _unschedulable(pod) or why
        return f"its pod {pod['metadata']['name']} is {_phase(pod)}{f': {said}' if said else ''}"

    def log(self, node: int) -> str:
        """The end of what the node's pod printed, while there is a pod."""
        pod = self._pods.get(node)
        if pod is None or node in self._deleted or _phase(pod) == "Pending":
            return ""
        with contextlib.suppress(StorageUnavailable, UsageError):
            return self.cluster.log(pod["metadata"]["name"])
        return ""

    def end(self, nodes: Collection[int]) -> None:
        """Wait until the nodes have ended, at most END_S; then delete their pods, and the JobSet if it is all of it."""
        is_whole = len(nodes) >= self.launch.nodes
        alive = self._outlasting(nodes, END_S)
        self._is_ending = self._is_ending or is_whole
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline:
            try:
                if is_whole:
                    self.cluster.delete_jobset(self.name)
                if alive:  # the JobSet's deletion alone would give each pod its whole grace period
                    numbers = "" if is_whole else f",{INDEX} in ({','.join(map(str, nodes))})"
                    self.cluster.delete_pods(f"{OF_JOBSET}={self.name}{numbers}")
                break
            except (StorageUnavailable, UsageError) as error:
                log.debug("%s", error)
                time.sleep(0.2)
        if alive := self._outlasting(nodes, deadline - time.monotonic()):
            log.warning("Kubernetes did not end the pods %s", ", ".join(alive))
        for watch in self._watches if is_whole else ():
            watch.stop()

    def _outlasting(self, nodes: Collection[int], timeout_s: float) -> list[str]:
        """The pods of these nodes that have not ended within a time."""
        deadline = time.monotonic() + timeout_s
        while True:
            alive = [self._pods[node]["metadata"]["name"] for node in nodes if self._is_alive(node)]
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.1)

    def _hear_jobset(self, jobset: Object, is_gone: bool) -> None:
        self._jobset, self._is_gone = jobset, is_gone

    def _hear_pod(self, pod: Object, is_gone: bool) -> None:
        metadata = pod["metadata"]
        number = metadata["labels"].get(INDEX, "")
        if not number.isdigit() or int(number) >= self.launch.nodes:
            return  # somebody else's, with our label
        node = int(number)
        self._pods[node] = pod
        missing = Ended(f"ended, because its pod {metadata['name']} was deleted") if is_gone else None
        ended = how_ended(pod) or missing
        if node not in self._ends and ended is not None:
            if is_gone or "deletionTimestamp" in metadata:
                self._look()
                ended = self._fate() or ended
            self._ends[node] = ended
        if is_gone:
            self._deleted.add(node)

    def _is_alive(self, node: int) -> bool:
        """Whether the node has a pod that has not ended."""
        pod = self._pods.get(node)
        return pod is not None and node not in self._deleted and _phase(pod) in ("Pending", "Running")

    def _fate(self) -> Ended | None:
        """What became of all pods of the JobSet together, by another's will; None if nothing did."""
        if self._jobset is None or self._is_ending:
            return None
        if self._is_gone or "deletionTimestamp" in self._jobset["metadata"]:
            return Ended(f"was cancelled, because its JobSet {self.name} was deleted", Cancelled)
        if _is_suspended(self._jobset) and self._pods:
            return Ended(f"was preempted: its JobSet {self.name} was suspended", Preempted)
        return None

    def _look(self) -> None:
        """Ask for the JobSet once, unless its fate is known: its watch may be behind that of the pods."""
        if self._is_ending or self._fate() is not None:
            return
        with contextlib.suppress(StorageUnavailable, UsageError):
            found = self.cluster.jobset(self.name)
            self._jobset, self._is_gone = found or self._jobset, found is None

    def secret(self) -> Object:
        """The generation's key, and what opens the store: the only part that is secret."""
        store, launch = self.store, self.launch
        key = generation_key(launch_key(store.uri, launch.training), launch.generation)
        needed = needed_values({"store": store.address.to_json()})
        passed = {name: value for name, value in needed.items() if not name.startswith(_OF_POD)}
        values = {**passed, **store_env(store.storage_options, store.pointers), NODE_KEY: key.hex()}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self.name}, "stringData": values}

    def jobset(self) -> Object:
        """The JobSet of the generation. Nothing in it is secret."""
        given, labels = self.variables, labels_of(self.placement.labels)
        named = {QUEUE: self.placement.queue, PRIORITY: given["priority"]}
        asked = {TOPOLOGY: given["topology"], PREFERRED: given["preferred_topology"]}
        job: Object = {
            "completionMode": "Indexed",
            "completions": self.launch.nodes,
            "parallelism": self.launch.nodes,
            # Not `backoffLimit: 0`: with it, the end of one pod would end all others, and hide which was the first.
            "backoffLimitPerIndex": 0,
            # A pod that is being deleted gets no other beside it.
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {
                    "labels": {**labels, "app.kubernetes.io/name": "trainwright-node"},
                    "annotations": {name: value for name, value in asked.items() if value},
                },
                "spec": self._pod(),
            },
        }
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "JobSet",
            "metadata": {
                "name": self.name,
                "labels": {**labels, **{name: value for name, value in named.items() if value}},
            },
            "spec": {
                "failurePolicy": {"maxRestarts": 0},
                # Nodes know each other by address.
                "network": {"enableDNSHostnames": False},
                "ttlSecondsAfterFinished": KEPT_S,
                "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": {"spec": job}}],
            },
        }

    def _pod(self) -> Object:
        given, launch, gpus = self.variables, self.launch, gpus_of(self.placement, self.variables)
        pod = json.loads((Path(__file__).parents[1] / "kubernetes" / "node-pod.json").read_text())
        # Of a machine's own fields, only its name can be matched, one name each.
        # Names of other launchers' machines, which Kubernetes would refuse, are none of its machines.
        hosts = [host for host in launch.left_out if _NAME.fullmatch(host)]
        left_out = [{"key": "metadata.name", "operator": "NotIn", "values": [host]} for host in hosts]
        terms = {"nodeSelectorTerms": [{"matchFields": left_out}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        requests = {name: given[name] for name in ("cpu", "memory") if given[name]}
        limits = {name: value for name, value in requests.items() if name == "memory"}
        container = {
            **pod["containers"][0],
            "image": given["image"],
            "imagePullPolicy": given["image_pull_policy"],
            "args": module_command(__name__, self.store.uri, launch.training, str(launch.generation), python="python"),
            "envFrom": [{"secretRef": {"name": self.name}}],
            "resources": {"requests": requests, "limits": {**limits, **gpus}},
        }
        return {
            **pod,
            "serviceAccountName": given["service_account"],
            "terminationGracePeriodSeconds": round(launch.grace_s) + 60,
            "nodeSelector": dict(pair.split("=") for pair in given["node_selector"].split(",") if pair),
            **({"affinity": affinity} if left_out else {}),
            "tolerations": [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in gpus],
            "containers": [container],
            "volumes": [
                {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": given["shared_memory"]}},
                {"name": "scratch", "emptyDir": {"sizeLimit": given["scratch"]}},
                {"name": "temporary", "emptyDir": {"sizeLimit": "1Gi"}},
            ],
        }


def gpus_of(placement: Placement, variables: Mapping[str, str]) -> dict[str, str]:
    """The GPUs of each pod, by their resource's name; {} if it needs none."""
    asked = placement.needs_gpus or "gpu_resource" in placement.job_variables
    return {variables["gpu_resource"]: str(placement.devices)} if asked else {}


def labels_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as labels, which have fewer characters: all others become dashes."""

    def fitting(text: str) -> str:
        return re.sub("[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-")

    names = {name: fitting(name) for name in tags}
    return {name: fitting(tags[tag]) for tag, name in names.items() if name and name not in _OF_JOB}


def how_ended(pod: Object) -> Ended | None:
    """How a pod ended, by its status alone; None while it has not.

    An eviction because a machine is short of something says more than the condition that Kubernetes sets with it.
    """
    status = pod.get("status", {})
    if _phase(pod) not in ("Failed", "Succeeded"):
        return None
    name, reason = f"its pod {pod['metadata']['name']}", status.get("reason", "")
    message = f": {status['message']}" if status.get("message") else ""
    terminated = _container(pod, "terminated")
    if terminated.get("reason") == "OOMKilled":
        return Ended(f"was killed, because {name} used more memory than its limit", OutOfMemory)
    if reason == "Evicted":
        return Ended(f"ended, because {name} was evicted{message}")
    if disrupted := _condition(pod, "DisruptionTarget"):
        why = " ".join(filter(None, (disrupted.get("reason"), disrupted.get("message"))))
        # The machine is gone: nobody wanted its place.
        is_lost = disrupted.get("reason") == "DeletionByPodGC"
        how = f"ended, because {name} was disrupted: {why}"
        return Ended(how) if is_lost else Ended(how, Preempted)
    if reason:
        return Ended(f"ended, because {name} failed: {reason}{message}")
    code = terminated.get("exitCode")
    if code == SIGTERM_CODE:
        return Ended(f"ended, because {name} was asked to end", Preempted)
    said = f" ({terminated['reason']})" if terminated.get("reason") not in (None, "Error", "Completed") else ""
    return Ended(f"ended, with {name}, with exit code {code}{said}")


class Watched(threading.Thread):
    """Follows a list of objects by the watch API until `stop`: first as it is, then each change.

    A watch that ends is continued where it was. If the API no longer knows that point (410), the list is read again.

    Args:
        listing: asks for the list, or with `watch` for its changes.
        hear: is told an object, and whether it is gone; only in this thread.
    """

    def __init__(self, listing: Callable[..., Any], hear: Callable[[Object, bool], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._listing, self._hear = listing, hear
        self._objects: dict[str, Object] = {}
        self._version: str | None = None
        self._trouble = ""
        self._watch: Any = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Follow the list."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        while not self._stopped.is_set():
            try:
                if self._version is None:
                    self._read()
                self._follow()
            except ApiException as error:
                self._version = None
                if error.status != 410:
                    self._warn(_said(error))
            except (HTTPError, OSError, ValueError) as error:
                self._warn(str(error))
            self._stopped.wait(AGAIN_S)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.stop()

    def _warn(self, trouble: str) -> None:
        if trouble != self._trouble and not self._stopped.is_set():  # not each second again
            self._trouble = trouble
            log.warning("The cluster does not say what becomes of the pods: %s", trouble)

    def _read(self) -> None:
        found = json.loads(self._listing(_request_timeout=TIMEOUT_S).data)
        objects = {one["metadata"]["name"]: one for one in found["items"]}
        for name in self._objects.keys() - objects.keys():
            self._take(self._objects[name], True)
        for one in objects.values():
            self._take(one, False)
        self._version = found["metadata"]["resourceVersion"]

    def _follow(self) -> None:
        from kubernetes.watch import Watch

        self._watch = Watch(return_type="object")
        events = self._watch.stream(
            self._listing,
            resource_version=self._version,
            timeout_seconds=WATCH_S,
            allow_watch_bookmarks=True,
            _request_timeout=(TIMEOUT_S[0], WATCH_S + TIMEOUT_S[1]),
        )
        with contextlib.closing(events):
            for event in events:
                found = event["raw_object"]
                if event["type"] != "BOOKMARK":
                    self._take(found, event["type"] == "DELETED")
                self._version = found["metadata"]["resourceVersion"]
                if self._stopped.is_set():
                    return

    def _take(self, item: Object, is_gone: bool) -> None:
        name = item["metadata"]["name"]
        self._objects[name] = item
        if is_gone:
            del self._objects[name]
        self._hear(item, is_gone)


class Cluster:
    """The API of a cluster, for one namespace, as a kubeconfig or this pod's service account opens it.

    Every question raises UsageError if the API refuses it, StorageUnavailable if it does not answer.
    """

    def __init__(self, namespace: str) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise UsageError(
                "The launcher kubernetes needs Kubernetes' client.", remedy="Install trainwright[kubernetes]."
            ) from error

        settings = client.Configuration()
        try:
            if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=settings)
        except config.ConfigException as error:
            raise UsageError(
                f"There is no cluster to ask: {error}.",
                remedy="Run in the cluster with a service account, or set KUBECONFIG.",
            ) from error
        self.namespace, self.host = namespace, str(settings.host)
        opened = client.ApiClient(settings)
        # The client has types since its version 37 only.
        self._core: Any = client.CoreV1Api(opened)
        self._custom: Any = client.CustomObjectsApi(opened)
        self._of_jobsets: Object = {"group": GROUP, "version": VERSION, "namespace": namespace, "plural": PLURAL}

    def check(self) -> None:
        """Find out whether the cluster has JobSets, and shows them and their pods."""
        jobsets = self._custom.list_namespaced_custom_object
        if self._ask("list JobSets", jobsets, **self._of_jobsets, limit=1, unless=404) is None:
            raise UsageError(
                f"The cluster has no JobSets of {GROUP}/{VERSION}.", remedy="Have its JobSet controller installed."
            )
        self._ask("list pods", self._core.list_namespaced_pod, self.namespace, limit=1)

    def jobset(self, name: str) -> Object | None:
        """A JobSet; None if there is none."""
        get = self._custom.get_namespaced_custom_object
        return self._ask("show the JobSet", get, **self._of_jobsets, name=name, unless=404)

    def make(self, body: Object, secret: Object) -> Object:
        """Make a JobSet, and its secret, for which its pods wait and which goes with it; or find those of this name."""
        name, create = body["metadata"]["name"], self._custom.create_namespaced_custom_object
        made = self._ask("make the JobSet", create, **self._of_jobsets, body=body, unless=409) or self.jobset(name)
        if made is None:
            raise StorageUnavailable("The JobSet was deleted while it was made.")
        owner = {"apiVersion": body["apiVersion"], "kind": "JobSet", "name": name, "uid": made["metadata"]["uid"]}
        owned = {**secret, "metadata": {**secret["metadata"], "ownerReferences": [owner]}}
        self._ask("make the secret", self._core.create_namespaced_secret, self.namespace, owned, unless=409)
        return made

    def delete_jobset(self, name: str) -> None:
        """Delete a JobSet after its jobs and pods, and its secret at once."""
        delete = self._custom.delete_namespaced_custom_object
        options = {**self._of_jobsets, "name": name, "propagation_policy": "Foreground"}
        self._ask("delete the JobSet", delete, **options, unless=404)
        self._ask("delete the secret", self._core.delete_namespaced_secret, name, self.namespace, unless=404)

    def delete_pods(self, selector: str) -> None:
        """Delete pods by their labels; after GRACE_S they are killed."""
        delete = self._core.delete_collection_namespaced_pod
        self._ask("delete pods", delete, self.namespace, label_selector=selector, grace_period_seconds=GRACE_S)

    def log(self, pod: str) -> str:
        """The end of what a pod printed."""
        read = self._core.read_namespaced_pod_log
        text = self._asked("show a log", read, pod, self.namespace, container=CONTAINER, tail_lines=LOG_LINES) or b""
        return text.decode(errors="replace")[-LOG_TAIL_BYTES:].strip()

    def list_jobsets(self, **options: Any) -> Any:
        """The response with the JobSets, or with `watch` the one that says their changes."""
        options["_preload_content"] = False
        return self._custom.list_namespaced_custom_object(**self._of_jobsets, **options)

    def list_pods(self, **options: Any) -> Any:
        """The response with the pods, or with `watch` the one that says their changes."""
        options["_preload_content"] = False
        return self._core.list_namespaced_pod(self.namespace, **options)

    def _ask(self, *arguments: Any, **options: Any) -> Any:
        """The answer as JSON, since the client's models refuse what is new to them; None for the status `unless`."""
        found = self._asked(*arguments, **options)
        return None if found is None else json.loads(found)

    def _asked(
        self, what: str, method: Any, *arguments: Any, unless: int | None = None, **options: Any
    ) -> bytes | None:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return bytes(method(*arguments, **options, _preload_content=False, _request_timeout=TIMEOUT_S).data)
        except ApiException as error:
            if error.status == unless:
                return None
            is_outage = not error.status or error.status in (408, 429) or error.status >= 500
            raised = StorageUnavailable if is_outage else UsageError
            raise raised(f"The cluster does not {what}: {_said(error)}") from error
        except (HTTPError, OSError) as error:
            raise StorageUnavailable(f"The cluster does not answer: {error}.") from error


def _said(error: Any) -> str:
    """What the API says of an error: the message of its Status, else the reason."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(error.body)["message"])
    return f"{error.status} {error.reason}"


def _variables(placement: Placement) -> dict[str, str]:
    """The job variables with their defaults. UsageError for an unknown one, and without an image."""
    section = f"{placement.section}.job_variables"
    for name, value in placement.job_variables.items():
        if name not in VARIABLES or not str(value).isprintable():
            raise UsageError(
                f"{section}.{name}: is not a variable of the launcher kubernetes.",
                remedy=f"Use {', '.join(VARIABLES)}.",
            )
    found = {**VARIABLES, **{name: str(value) for name, value in placement.job_variables.items()}}
    if not found["image"]:
        raise UsageError(
            f"{section}.image: is missing.", remedy="Name the image of infra/docker/Dockerfile, with this version."
        )
    if not re.fullmatch(r"([^=,]+=[^=,]*(,(?=.)|$))*", found["node_selector"]):
        raise UsageError(
            f"{section}.node_selector: {found['node_selector']!r} is not a list of labels.",
            remedy="Write it as LABEL=VALUE, several with a comma between them.",
        )
    return found


def _is_preempted(message: object) -> bool:
    if not isinstance(message, NodeExit) or message.error is None:
        return False
    return isinstance(from_json(message.error), Preempted)


def _is_suspended(jobset: Object) -> bool:
    return bool(jobset.get("spec", {}).get("suspend"))


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _condition(pod: Object, kind: str, status: str = "True") -> Object:
    """A condition of a pod; {} if it does not hold."""
    conditions = pod.get("status", {}).get("conditions") or []
    return next((one for one in conditions if (one["type"], one["status"]) == (kind, status)), {})


def _unschedulable(pod: Object) -> str:
    """Why the scheduler has no machine for a pod; "" if it has, or has not looked."""
    found = _condition(pod, "PodScheduled", "False")
    return str(found.get("message") or found.get("reason", ""))


def _container(pod: Object, state: str) -> Object:
    """What is said of a container that is in this state; {} in another."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    # A mesh may have put its own container beside ours.
    ours: Object = next((one for one in statuses if one.get("name", CONTAINER) == CONTAINER), {})
    return (ours.get("state") or {}).get(state) or {}


def main() -> None:
    """Run the node of this pod: its supervisor, in this process."""
    store, training, generation = sys.argv[1:]
    # The first process of a container gets no signal that it does not handle; soon its supervisor does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM_CODE))
    with scratch.make("node") as folder:
        os.environ[SCRATCH] = str(folder.path / "scratch")
        sys.argv = [sys.argv[0], store, training, generation, os.environ[INDEX_VARIABLE]]
        supervisor.main()


if __name__ == "__main__":
    main()
