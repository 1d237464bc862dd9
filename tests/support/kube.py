"""A Kubernetes API server for tests, whose pods are processes of this machine.

It keeps objects, answers the official client's requests for JobSets, pods and secrets, and streams watches from any
version that it has not forgotten (else 410). It plays Kueue, the controllers of JobSets and Jobs, the kubelet and the
garbage collector, as far as a gang notices them. It does not play the scheduler, quotas, or admission by schemas.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from infra.processes.processes import kill_marked, marked_env, new_mark

Object = dict[str, Any]
NAMESPACE = "ml"
INDEX = "batch.kubernetes.io/job-completion-index"
OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
PATHS = {
    f"/api/v1/namespaces/{NAMESPACE}/pods": "pods",
    f"/api/v1/namespaces/{NAMESPACE}/secrets": "secrets",
    f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets": "jobsets",
}
SIGTERM_CODE, SIGKILL_CODE = 143, 137


class Refused(Exception):
    """An answer that is not the object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.status = code, {"kind": "Status", "code": code, "reason": reason, "message": message}


class Kubernetes:
    """A cluster of one namespace.

    Args:
        folder: for the kubeconfig and the pods' logs.
        hosts: names of machines, which get pods in turn.

    Attributes:
        environment: of clients.
        asked: every request, as (method, path with query).
        has_kueue: whether a JobSet with a queue waits until `admit`.
        refusing: code with which every request is answered; None: none.
    """

    def __init__(self, folder: Path, hosts: tuple[str, ...] = ("n0", "n1", "n2")) -> None:
        self.folder, self.hosts, self.mark = folder, hosts, new_mark()
        self.has_kueue, self.runs_pods, self.refusing = False, True, None
        self.asked: list[tuple[str, str]] = []
        self.objects: dict[str, dict[str, Object]] = {kind: {} for kind in PATHS.values()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._version, self._forgotten, self._epoch, self.num_refused = 100, 0, 0, 0
        self._events: list[tuple[int, str, str, Object]] = []
        self._changed = threading.Condition(threading.RLock())
        self._token = secrets.token_hex(16)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="kubernetes", daemon=True).start()
        self.environment = {"KUBECONFIG": str(self._kubeconfig())}

    # What a cluster does to a gang.

    def admit(self, name: str) -> None:
        """Kueue admits a JobSet."""
        with self._changed:
            jobset = self.objects["jobsets"][name]
            self._change("jobsets", name, {**jobset, "spec": {**jobset["spec"], "suspend": False}})
            self._start_pods(jobset)

    def suspend(self, name: str, grace_s: float = 30.0) -> None:
        """Kueue takes a JobSet's machines: its pods are deleted."""
        with self._changed:
            jobset = self.objects["jobsets"][name]
            self._change("jobsets", name, {**jobset, "spec": {**jobset["spec"], "suspend": True}})
        for pod in self.pods(name):
            self.delete_pod(pod, grace_s)

    def delete(self, name: str, propagation: str = "Background", grace_s: float = 30.0) -> None:
        """Delete a JobSet as a person does; in the foreground, it is there until its pods have gone."""
        with self._changed:
            jobset = self.objects["jobsets"].get(name)
            if jobset is None:
                raise _missing("jobsets", name)
            pods = self.pods(name)
            if propagation == "Foreground":
                self._change("jobsets", name, _patched(jobset, {"metadata": {"deletionTimestamp": _now()}}))
            else:
                self._remove("jobsets", name)
        for pod in pods:
            self.delete_pod(pod, grace_s)
        threading.Thread(target=self._collect, args=(name,), daemon=True).start()

    def disrupt(self, pod: str, reason: str, message: str, grace_s: float = 30.0) -> None:
        """Evict a pod for the sake of others."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        self.set_status(pod, {"conditions": [condition]})
        self.delete_pod(pod, grace_s)

    def set_status(self, pod: str, status: Object) -> None:
        """Change a pod's status, as the kubelet or the scheduler does."""
        with self._changed:
            found = self.objects["pods"][pod]
            self._change("pods", pod, {**found, "status": {**found["status"], **status}})

    def kill(self, pod: str, reason: str = "Error") -> None:
        """The kernel kills a pod's processes."""
        with self._changed:
            found = self.objects["pods"][pod]
            self._change("pods", pod, _patched(found, {"metadata": {"annotations": {"killed-as": reason}}}))
        self._signal(pod, signal.SIGKILL)

    def delete_pod(self, pod: str, grace_s: float = 30.0) -> None:
        """Ask a pod to end; it is killed after the grace period, and gone then."""
        with self._changed:
            found = self.objects["pods"].get(pod)
            if found is None:
                raise _missing("pods", pod)
            if "deletionTimestamp" not in found["metadata"]:
                self._change("pods", pod, _patched(found, {"metadata": {"deletionTimestamp": _now()}}))
        self._signal(pod, signal.SIGTERM)
        threading.Thread(target=self._end_pod, args=(pod, grace_s), daemon=True).start()

    def lose_pod(self, pod: str) -> None:
        """A pod's object goes, without a word of why; its processes are killed."""
        with self._changed:
            self._remove("pods", pod)
        self._signal(pod, signal.SIGKILL)

    def cut_watches(self) -> None:
        """End all streams, as when the API server is restarted."""
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def forget(self) -> None:
        """Forget all versions so far: a watch from one of them is answered with 410."""
        with self._changed:
            self._forgotten, self._events = self._version, []
        self.cut_watches()

    def pods(self, jobset: str) -> list[str]:
        """Names of a JobSet's pods, by their index."""
        with self._changed:
            found = [one for one in self.objects["pods"].values() if one["metadata"]["labels"][OF_JOBSET] == jobset]
            ordered = sorted(found, key=lambda one: int(one["metadata"]["annotations"][INDEX]))
            return [one["metadata"]["name"] for one in ordered]

    def jobsets(self) -> list[str]:
        """Names of the JobSets, oldest first."""
        with self._changed:
            return list(self.objects["jobsets"])

    def close(self) -> None:
        """End all."""
        self._server.shutdown()
        self._server.server_close()
        self.cut_watches()
        kill_marked(self.mark)

    # The API.

    def create(self, kind: str, body: Object) -> Object:
        """Store an object, and do what the controllers then do."""
        name = body["metadata"]["name"]
        with self._changed:
            if name in self.objects[kind]:
                raise Refused(409, "AlreadyExists", f'{kind} "{name}" already exists')
            metadata = {**body["metadata"], "namespace": NAMESPACE, "uid": secrets.token_hex(8)}
            made = {**body, "metadata": {**metadata, "creationTimestamp": _now()}}
            if kind == "jobsets":
                queue = metadata.get("labels", {}).get("kueue.x-k8s.io/queue-name")
                waits = self.has_kueue and queue is not None
                made = {**made, "spec": {**made["spec"], "suspend": waits}}
            self._change(kind, name, made, "ADDED")
            if kind == "jobsets" and not made["spec"]["suspend"]:
                self._start_pods(made)
            return self.objects[kind][name]

    def _change(self, kind: str, name: str, found: Object, event: str = "MODIFIED") -> None:
        self._version += 1
        found = copy.deepcopy(found)
        found["metadata"]["resourceVersion"] = str(self._version)
        self.objects[kind][name] = found
        self._events.append((self._version, kind, event, found))
        self._changed.notify_all()

    def _remove(self, kind: str, name: str) -> None:
        found = self.objects[kind].get(name)
        if found is not None:
            self._change(kind, name, found, "DELETED")
            del self.objects[kind][name]

    def _collect(self, jobset: str) -> None:
        """The garbage collector: once the pods have gone, what the JobSet owned goes, and it itself."""
        while self.pods(jobset):
            time.sleep(0.05)
        with self._changed:
            owned = [
                name
                for name, secret in self.objects["secrets"].items()
                if any(owner["name"] == jobset for owner in secret["metadata"].get("ownerReferences", []))
            ]
            for name in owned:
                self._remove("secrets", name)
            self._remove("jobsets", jobset)

    def _start_pods(self, jobset: Object) -> None:
        [replicated] = jobset["spec"]["replicatedJobs"]
        job = replicated["template"]["spec"]
        for index in range(job["completions"]):
            name = f"{jobset['metadata']['name']}-{replicated['name']}-0-{index}-{secrets.token_hex(3)[:5]}"
            template = job["template"]
            metadata = {
                "name": name,
                "labels": {**template["metadata"]["labels"], OF_JOBSET: jobset["metadata"]["name"], INDEX: str(index)},
                "annotations": {**template["metadata"].get("annotations", {}), INDEX: str(index)},
            }
            spec = {**template["spec"], "nodeName": self.hosts[index % len(self.hosts)]}
            self.create("pods", {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
            if self.runs_pods:
                threading.Thread(target=self._run_pod, args=(name, index), daemon=True).start()

    def _run_pod(self, name: str, index: int) -> None:
        """The kubelet: waits for the secret, runs the container's command, and says how that ended."""
        with self._changed:
            pod = self.objects["pods"][name]
            [container] = pod["spec"]["containers"]
            secrets_of_pod = {source["secretRef"]["name"] for source in container["envFrom"]}
            self._changed.wait_for(
                lambda: name not in self.objects["pods"] or secrets_of_pod <= self.objects["secrets"].keys()
            )
            if name not in self.objects["pods"]:
                return
        given = {"JOB_COMPLETION_INDEX": str(index)}
        fields = {"status.podIP": "127.0.0.1", "spec.nodeName": pod["spec"]["nodeName"]}
        for entry in container["env"]:
            given[entry["name"]] = entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for source in container["envFrom"]:
            given |= self.objects["secrets"][source["secretRef"]["name"]]["stringData"]
        # Nothing of this machine's environment comes in but what finds programs and modules.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        image = {"PATH": path, "HOME": str(self.folder), "TRAINWRIGHT_HOME": str(self.folder / "home")}
        environment = marked_env(self.mark, given, image)
        with (self.folder / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(
                container["args"], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        with contextlib.suppress(KeyError):
            self.set_status(name, {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]})
        code = process.wait()
        with self._changed, contextlib.suppress(KeyError):
            killed_as = self.objects["pods"][name]["metadata"]["annotations"].get("killed-as")
            terminated = {"exitCode": code if code >= 0 else 128 - code, "reason": killed_as or "Error"}
            if code == 0:
                terminated["reason"] = "Completed"
            status = {"phase": "Failed" if code else "Succeeded"}
            self.set_status(name, {**status, "containerStatuses": [{"state": {"terminated": terminated}}]})

    def _end_pod(self, name: str, grace_s: float) -> None:
        process = self.processes.get(name)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
            self._signal(name, signal.SIGKILL)
            process.wait()
            time.sleep(0.1)  # its status is said first
        with self._changed:
            self._remove("pods", name)

    def _signal(self, pod: str, number: int) -> None:
        process = self.processes.get(pod)
        if process is not None and process.poll() is None:
            process.send_signal(number)

    # The protocol.

    def _kubeconfig(self) -> Path:
        path = self.folder / "kubeconfig"
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        named = [("clusters", "cluster", {"server": server}), ("users", "user", {"token": self._token})]
        contexts = [("contexts", "context", {"cluster": "test", "user": "test"})]
        content: Object = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        for plural, one, value in [*named, *contexts]:
            content[plural] = [{"name": "test", one: value}]
        path.write_text(yaml.safe_dump(content))
        return path

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def answer(self, work: Callable[[], Object | str | None], code: int = 200) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self.body: Object = json.loads(self.rfile.read(length) or b"{}")
                try:
                    if self.headers.get("Authorization") != f"Bearer {cluster._token}":
                        raise Refused(401, "Unauthorized", "Unauthorized")
                    if cluster.refusing is not None:
                        cluster.num_refused += 1
                        raise Refused(cluster.refusing, "Refused", "as the test says")
                    value = work()
                except Refused as refused:
                    code, value = refused.code, refused.status
                if value is None:
                    return
                content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/plain" if isinstance(value, str) else "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def place(self) -> tuple[str, str, str, dict[str, str]]:
                cluster.asked.append((self.command, self.path))
                parts = urlsplit(self.path)
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                for path, kind in PATHS.items():
                    if parts.path == path or parts.path.startswith(f"{path}/"):
                        name, _, sub = parts.path[len(path) + 1 :].partition("/")
                        return kind, name, sub, query
                raise Refused(404, "NotFound", "the server could not find the requested resource")

            def do_GET(self) -> None:
                self.answer(self.get)

            def do_POST(self) -> None:
                self.answer(lambda: cluster.create(self.place()[0], self.body), 201)

            def do_PATCH(self) -> None:
                self.answer(self.patch)

            def do_DELETE(self) -> None:
                self.answer(self.delete)

            def get(self) -> Object | str | None:
                kind, name, sub, query = self.place()
                if sub == "log":
                    path = cluster.folder / f"{name}.log"
                    return path.read_text() if path.exists() else ""
                with cluster._changed:
                    if name:
                        return _named(cluster.objects[kind], kind, name)
                    if query.get("watch") not in ("true", "True"):
                        items = [one for one in cluster.objects[kind].values() if _selects(query, one)]
                        return {"items": items, "metadata": {"resourceVersion": str(cluster._version)}}
                self.watch(kind, query)
                return None

            def watch(self, kind: str, query: dict[str, str]) -> None:
                is_old = int(query["resourceVersion"]) < cluster._forgotten
                since, deadline = int(query["resourceVersion"]), time.monotonic() + float(query["timeoutSeconds"])
                expired = Refused(410, "Expired", f"too old resource version: {since} ({cluster._forgotten})")
                if is_old and kind == "jobsets":  # or in the stream: API servers do both
                    raise expired
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    old = {"type": "ERROR", "object": expired.status}
                    for event in [old] if is_old else cluster._since(kind, since, deadline):
                        if event is old or _selects(query, event["object"]):
                            line = json.dumps(event).encode() + b"\n"
                            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    self.wfile.write(b"0\r\n\r\n")

            def patch(self) -> Object:
                kind, name, _, _ = self.place()
                with cluster._changed:
                    found = _named(cluster.objects[kind], kind, name)
                    cluster._change(kind, name, _patched(found, self.body))
                    return cluster.objects[kind][name]

            def delete(self) -> Object:
                kind, name, _, query = self.place()
                query |= {key: str(value) for key, value in self.body.items()}
                grace_s = float(query.get("gracePeriodSeconds", 30))
                if kind == "jobsets":
                    cluster.delete(name, query.get("propagationPolicy", "Background"), grace_s)
                elif kind == "pods":
                    for pod in (
                        [name]
                        if name
                        else [pod for pod, found in list(cluster.objects[kind].items()) if _selects(query, found)]
                    ):
                        cluster.delete_pod(pod, grace_s)
                else:
                    with cluster._changed:
                        _named(cluster.objects[kind], kind, name)
                        cluster._remove(kind, name)
                return {"kind": "Status", "status": "Success"}

        return Handler

    def _since(self, kind: str, version: int, deadline: float) -> Iterator[Object]:
        """The events after a version, as they come, until the deadline or until all streams are cut."""
        epoch = self._epoch
        while True:
            with self._changed:
                new = [event for event in self._events if event[0] > version]
                if not new:
                    left = deadline - time.monotonic()
                    if left <= 0 or epoch != self._epoch:
                        return
                    self._changed.wait(left)
                    continue
            version = new[-1][0]
            yield from ({"type": event, "object": found} for _, of, event, found in new if of == kind)


def _named(objects: dict[str, Object], kind: str, name: str) -> Object:
    if name not in objects:
        raise _missing(kind, name)
    return objects[name]


def _missing(kind: str, name: str) -> Refused:
    return Refused(404, "NotFound", f'{kind} "{name}" not found')


def _selects(query: dict[str, str], found: Object) -> bool:
    metadata = found["metadata"]
    for name, several, one in re.findall(r"([^,= ]+)(?: in \((.*?)\)|=([^,]*))", query.get("labelSelector", "")):
        if metadata.get("labels", {}).get(name) not in (several.split(",") if several else [one]):
            return False
    field = query.get("fieldSelector", "")
    return not field or field == f"metadata.name={metadata['name']}"


def _patched(found: Any, change: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(change, dict) or not isinstance(found, dict):
        return change
    merged = {name: _patched(found.get(name), value) for name, value in change.items()}
    return {name: value for name, value in {**found, **merged}.items() if value is not None}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
