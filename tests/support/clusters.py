"""What runs a gang's nodes, for tests that every launcher must pass: this machine, a work pool, Slurm, hosts of ssh,
Kubernetes.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from data_contracts.messages.gang import Joined, Latest, Meeting
from infra.processes.processes import find_marked, kill_marked, marked_env, new_mark
from infra.store import Store, layout, open_store
from tests.support.conducted import Conducted
from tests.support.conducting import TRAINING
from tests.support.kube import NAMESPACE, Kubernetes
from tests.support.pool import Conductor, Site
from tests.support.slurm import PARTITION, Slurm
from tests.support.waiting import free_port, listens, until

HOSTS = ("n0", "n1", "n2")


class Cluster(abc.ABC):
    """Runs gangs of fake ranks, with a node for each of HOSTS."""

    @abc.abstractmethod
    def conduct(self, folder: Path, fake: Mapping[str, Any], **options: Any) -> Conducted:
        """Begin to conduct a training in `folder`, or to conduct it further."""

    def lose(self, gang: Conducted, node: int) -> None:
        """Let a machine of generation 0 go dark: no process of the node is left."""
        joined = nodes_of(gang.store)[node]
        with contextlib.suppress(ProcessLookupError):
            os.kill(joined.pid, signal.SIGKILL)
        kill_marked(joined.instance)

    def restart(self) -> None:
        """Restart the daemon that has started the nodes."""
        return

    @abc.abstractmethod
    def close(self) -> None:
        """End what runs nodes."""


class Here(Cluster):
    """This machine: the launcher `local`."""

    placement: Mapping[str, Any] | None = None

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self.marks: list[str] = []

    def conduct(self, folder: Path, fake: Mapping[str, Any], **options: Any) -> Conducted:
        """Begin to conduct a training."""
        mark = new_mark()
        self.marks.append(mark)
        store = open_store(str(folder / "store"))
        settings = {"folder": str(folder), "devices": 1, "rollcall_timeout_s": 150, **options}
        if self.placement is not None:
            settings["placement"] = self.placement
        words = ["tests.support.conducting", store.uri, json.dumps(fake), json.dumps(settings)]
        return Conducted(folder, store, words, {**marked_env(mark), **self.environment})

    def close(self) -> None:
        """End what is left of tests that failed."""
        for mark in self.marks:
            kill_marked(mark)


class Pool(Cluster):
    """A Prefect work pool: the launcher `work-pool`."""

    def __init__(self, site: Site) -> None:
        self.site, self.pool = site, site.pool("clusters")

    def conduct(self, folder: Path, fake: Mapping[str, Any], **options: Any) -> Conducted:
        """Begin to conduct a training."""
        return Conductor(self.site, folder, self.pool, dict(fake), **options)

    def restart(self) -> None:
        """Kill the worker without a word, and start another."""
        for mark in self.site.workers.values():
            for pid in find_marked(mark):
                if b"worker\0start" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        self.site.work(self.pool)

    def close(self) -> None:
        """End its workers."""
        self.site.stop_work(self.pool)


class SlurmCluster(Here):
    """A real Slurm: the launcher `slurm`."""

    def __init__(self, *, accounting: bool = False) -> None:
        super().__init__()
        self.placement = {"launcher": "slurm", "pool": PARTITION}
        # Short, for the path of a socket; everybody may enter it.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.slurm = Slurm(self.folder, accounting=accounting)
        self.environment = self.slurm.environment

    def job(self) -> str:
        """The only job."""
        (job,) = until(self.slurm.jobs)
        return str(job)

    def lose(self, gang: Conducted, node: int) -> None:
        """Kill slurmd, too; it is started again once the job has noticed."""
        job, host = self.job(), nodes_of(gang.store)[node].host
        self.slurm.lose(host)
        super().lose(gang, node)
        until(lambda: job not in self.slurm.jobs(), what=self.slurm.said)
        self.slurm.start_machine(host)

    def conduct(self, folder: Path, fake: Mapping[str, Any], **options: Any) -> Conducted:
        """Begin to conduct a training, once all machines are free; or to conduct it further."""
        if not (folder / "store" / "store.json").exists():
            self.slurm.wait_until_idle()
        return super().conduct(folder, fake, **options)

    def restart(self) -> None:
        """Restart slurmctld."""
        self.slurm.stop_controller()
        until(lambda: not self.slurm.jobs())
        self.slurm.start_controller()
        until(self.slurm.jobs, what=self.slurm.said)

    def close(self) -> None:
        """End all."""
        super().close()
        self.slurm.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class SshHosts(Here):
    """Hosts that a real sshd lets in: the launcher `ssh`. All of them are this machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.mark, port = new_mark(), free_port()
        for name in ("host", "me"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "me.pub", folder / "authorized")
        known = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{port} {known}")
        (folder / "sshd").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            "UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nPidFile none\n"
            "MaxStartups 100\n"
        )
        (folder / "client").write_text(
            f"Host {' '.join(HOSTS)}\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {folder}/me\n"
            f"  UserKnownHostsFile {folder}/known\n"
        )
        (folder / "hosts").write_text("".join(f"{host}\n" for host in HOSTS))
        # A person's own configuration lies in their home, which only the system's list of users can name.
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
        (folder / "bin" / "ssh").chmod(0o755)
        self.folder, self.port = folder, port
        self.open()
        self.placement = {"launcher": "ssh", "pool": str(folder / "hosts")}
        self.environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def open(self) -> None:
        """Start sshd."""
        Path("/run/sshd").mkdir(exist_ok=True)
        sshd = str(shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"))
        with (self.folder / "log").open("a") as log:
            self._daemon = subprocess.Popen(
                [sshd, "-D", "-e", "-f", self.folder / "sshd"],
                env=marked_env(self.mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(lambda: listens(self.port), what=(self.folder / "log").read_text)

    def restart(self) -> None:
        """Restart sshd, whose connections stay."""
        self._daemon.terminate()
        self._daemon.wait()
        self.open()

    def shut(self) -> None:
        """End sshd, and all connections."""
        # It writes over its own environment, so that its mark cannot be read.
        daemon = psutil.Process(self._daemon.pid)
        for process in (daemon, *daemon.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._daemon.wait()
        kill_marked(self.mark)

    def close(self) -> None:
        """End all."""
        super().close()
        self.shut()


class KubernetesCluster(Here):
    """An API server of ours, whose pods are processes of this machine: the launcher `kubernetes`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.kubernetes = Kubernetes(folder, HOSTS)
        self.environment = self.kubernetes.environment
        self.placement = {"launcher": "kubernetes", "pool": NAMESPACE, "job_variables": {"image": "trainwright"}}

    def cancel(self, gang: Conducted) -> None:
        """Delete its JobSet."""
        self.kubernetes.delete(until(self.kubernetes.jobsets)[-1])

    def restart(self) -> None:
        """Let the API server answer nothing for a while, and forget what it said before."""
        refused = self.kubernetes.num_refused
        self.kubernetes.refusing = 503
        self.kubernetes.cut_watches()
        until(lambda: self.kubernetes.num_refused > refused)
        self.kubernetes.refusing = None
        self.kubernetes.forget()

    def close(self) -> None:
        """End the server and all pods."""
        super().close()
        self.kubernetes.close()


def nodes_of(store: Store, generation: int = 0) -> dict[int, Joined]:
    """The nodes of a generation whose gang has met, by number."""
    path = layout.rollcall(TRAINING, generation)
    meeting: Meeting = until(lambda: store.find_as(path, Meeting.from_json))
    return {node.node: node for node in meeting.nodes}


def processes_left(store: Store) -> list[str]:
    """The command lines of live processes of the store's trainings, except their conductors."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command, environment = process.cmdline(), process.environ()
            if "tests.support.conducting" in command or "tests.support.pooled" in command:
                continue
            if store.uri in command or store.uri in environment.values():
                found.append(" ".join(command))
    return found


def ended(gang: Conducted) -> list[tuple[str, str]]:
    """Why the generations ended: cause and sentence of each."""
    return [(line["cause"], line["sentence"]) for line in gang.lines() if line.get("phase") == "ended"]


def used(gang: Conducted) -> dict[str, int]:
    """The retry budgets that were charged, and how often."""
    return Latest.from_json(gang.store.pointer(layout.latest(TRAINING)).read().value).retries.used


def at_rest(cluster: Cluster, folder: Path, nodes: int = 3, **options: Any) -> tuple[Conducted, Path]:
    """A gang whose ranks have come to step 9 of 10 and wait for a file, with the checkpoint of step 5 committed."""
    file = folder / "go"
    gang = cluster.conduct(folder, {"steps": 10, "every": 5, "until": str(file)}, nodes=nodes, **options)
    until(lambda: all(gang.steps().get((0, rank), [0])[-1] == 9 for rank in range(nodes)), what=gang.lines)
    gang.said(lambda line: line["checkpoint_step"] == 5)
    return gang, file
