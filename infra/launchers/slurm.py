"""Run a gang's nodes as the tasks of Slurm jobs, one job for each generation: the launcher `slurm`.

`sbatch` queues the job, with a place for each node; Slurm starts all of them, or none. On each of its machines, `srun`
starts this module, which is the node's supervisor. Slurm says what became of the job, and with it of nodes that end
without a word: preempted, lost, out of memory. Before a time limit it warns with SIGUSR1: the ranks save a checkpoint,
and the next generation goes on, at no cost to a retry budget.

The conductor runs where `sbatch` does, and the job's machines reach it (`TRAINWRIGHT_ADDRESS`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import FrameType

from data_contracts.errors import (
    Cancelled,
    NodeLost,
    OutOfMemory,
    Preempted,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    from_json,
)
from data_contracts.messages.gang import Launch, NodeExit
from infra import scratch, stopping
from infra.child import log_tail
from infra.gang import supervisor
from infra.gang.hub import Ended, Hub, News
from infra.gang.membership import Membership
from infra.gang.node import own_address
from infra.gang.rank_files import ADDRESS, NODE_KEY, SCRATCH, generation_key, launch_key, store_env
from infra.processes.environment import for_user_code
from infra.processes.processes import module_command, uninterrupted
from infra.records.nodes import NODE
from infra.settings import state_folder
from infra.store import Store

# Between two questions to slurmctld, whatever the number of nodes.
ASK_S = 2.0
# Nodes that have been told to end get this long to say how; then Slurm kills them.
END_S, KILL_S = 8.0, 30.0
COMMAND_S = 60.0
# The address of the conductor's hub, for a node.
CONDUCTOR = "TRAINWRIGHT_CONDUCTOR"
# What became of a node by the state of its job.
CAUSES: Mapping[str, type[TrainwrightError]] = {
    "PREEMPTED": Preempted,
    "TIMEOUT": Preempted,
    "DEADLINE": Preempted,
    "OUT_OF_MEMORY": OutOfMemory,
    "CANCELLED": Cancelled,
    "REVOKED": Cancelled,
}
OVER = frozenset(("COMPLETED", "FAILED", "NODE_FAIL", "BOOT_FAIL", *CAUSES))
WAITING = frozenset(("", "PENDING", "CONFIGURING"))
_OPTION = re.compile(r"[a-z][a-z-]{1,40}")
# What the launcher decides itself.
_OURS = frozenset(
    ("array", "export", "job-name", "nodes", "ntasks", "ntasks-per-node", "output", "error", "parsable", "wrap")
)

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Partition:
    """Where in Slurm a gang's nodes run.

    Attributes:
        section: of the spec.
        name: of the partition; queue: the quality of service; "": the user's default.
        comment: of the job, such as the spec's tags.
        options: more of `sbatch`'s long options, by name.
    """

    section: str
    name: str
    queue: str = ""
    comment: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """UsageError for an option that is none, or that is not the user's to set."""
        for name, value in self.options.items():
            if not _OPTION.fullmatch(name) or name in _OURS or not str(value).isprintable():
                raise UsageError(
                    f"{self.section}.job_variables.{name}: is not an option of sbatch that can be set here.",
                    remedy="Use long names without dashes, such as account, time or gres.",
                )


class SlurmLauncher:
    """Queues a job for each generation of a training."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        hosts = re.findall(r"^SlurmctldHost\S*\s*=\s*(\S+?)(?:\((\S+)\))?$", slurm("scontrol", "show", "config"), re.M)
        self.address = own_address([f"slurm://{address or name}:6817" for name, address in hosts])

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> SlurmNodes:
        """The nodes of a generation."""
        return SlurmNodes(store, launch, hub, self.partition)


class SlurmNodes(Membership):
    """The nodes of a generation as the tasks of a job, in the order of their numbers."""

    def __init__(self, store: Store, launch: Launch, hub: Hub, partition: Partition) -> None:
        super().__init__(store, launch, hub)
        self.job, self._state, self._reason, self._nodes = "", "", "", 0
        self._partition, self._printed = partition, state_folder() / "slurm"
        self._stopped = threading.Event()
        self._held: list[News] = []

    def start(self, nodes: Collection[int]) -> None:
        """Queue the job. Machines that are left out are excluded, so no node needs another in its place."""
        if self.job:
            return
        self._printed.mkdir(mode=0o700, exist_ok=True)
        with uninterrupted():  # a signal in between would leave a job that nobody knows
            self.job = slurm(*self.command(), text=self.script(), environ=self._environ()).strip()
        self._nodes = len(nodes)
        threading.Thread(target=self._follow, name="slurm", daemon=True).start()

    def command(self) -> list[str]:
        """The command that queues the job."""
        launch, partition = self.launch, self._partition
        options = {
            "job-name": f"{launch.training.rpartition('/')[2][:12]}-g{launch.generation}",
            "partition": partition.name,
            "nodes": f"{launch.least_nodes}-{launch.nodes}",
            "ntasks-per-node": "1",
            "output": str(self._printed / "%j.txt"),
            "signal": f"USR1@{round(launch.grace_s) + 60}",
            **({"qos": partition.queue} if partition.queue else {}),
            **({"comment": partition.comment} if partition.comment else {}),
            **({"exclude": ",".join(launch.left_out)} if launch.left_out else {}),
            **partition.options,
        }
        return [
            "sbatch",
            "--parsable",
            "--no-requeue",
            "--export=ALL",
            *(f"--{name}={one}" for name, one in options.items()),
        ]

    def script(self) -> str:
        """The job's script."""
        launch = self.launch
        arguments = [self.store.uri, launch.training, str(launch.generation)]
        node = shlex.join(module_command(__name__, *arguments))
        return f"#!/bin/sh\nexec srun --kill-on-bad-exit=0 --ntasks-per-node=1 {node}\n"

    def ended(self) -> Mapping[int, Ended]:
        """All nodes, once the job is over."""
        if self._state not in OVER:
            return {}
        how = f"ended as its Slurm job {self.job} did: {self._said()}"
        return dict.fromkeys(range(self._nodes), Ended(how, CAUSES.get(self._state, NodeLost)))

    def news(self) -> list[News]:
        """What has come. Slurm cancels a job with the signal that it preempts it with: which it was, its end says."""
        found = [*self._held, *super().news()]
        self._held = [one for one in found if _is_preempted(one.message)]
        if not self._held:
            return found
        self._look()
        if self._state != "COMPLETING":
            self._held = []
        cancelled = Ended(f"was cancelled in Slurm, with its job {self.job}", Cancelled)
        others = [one for one in found if one not in self._held]
        if self._state != "CANCELLED":
            return others
        return [one._replace(message=cancelled) if _is_preempted(one.message) else one for one in others]

    def status(self, node: int) -> str:
        """What Slurm says of the job."""
        return f"its Slurm job {self.job} is {self._said()}" if self.job else ""

    def log(self, node: int) -> str:
        """The end of what all nodes of the job printed, where this machine can read it."""
        return log_tail(self._printed / f"{self.job}.txt") if (self._printed / f"{self.job}.txt").exists() else ""

    def end(self, nodes: Collection[int]) -> None:
        """Wait until the nodes have said how they ended, at most END_S; then Slurm ends the job, if it is all of it."""
        if not self.job:
            return
        deadline = time.monotonic() + END_S
        while self._state not in OVER and self._state not in WAITING and time.monotonic() < deadline:
            if len(nodes) < self._nodes and self.hub.left.issuperset(nodes):
                break
            time.sleep(0.2)
            self._look()
        if len(nodes) < self._nodes:
            return
        deadline = time.monotonic() + KILL_S
        while self._state not in OVER and time.monotonic() < deadline:
            slurm("scancel", self.job)
            self._look()
            time.sleep(0.2)
        self._stopped.set()

    def _follow(self) -> None:
        while not self._stopped.wait(ASK_S) and self._state not in OVER:
            self._look()

    def _look(self) -> None:
        """Ask for the job's state; what is known stays if slurmctld does not answer, as while it restarts."""
        with contextlib.suppress(StorageUnavailable, UsageError):
            told = slurm("squeue", "--noheader", "--states=all", "--format=%T %r", f"--jobs={self.job}").split()
            if told:
                self._state, self._reason = told[0], " ".join(told[1:])

    def _said(self) -> str:
        return f"{self._state or 'PENDING'} ({self._reason})" if self._reason not in ("", "None") else self._state

    def _environ(self) -> dict[str, str]:
        store, training = self.store, self.launch.training
        key = generation_key(launch_key(store.uri, training), self.launch.generation)
        conductor = self.launch.conductor
        assert conductor is not None, "its hub listens"
        kept = for_user_code(os.environ, {"store": store.address.to_json()})
        return {
            **{
                name: value
                for name, value in kept.items()
                if not name.startswith(("SLURM_", "SBATCH_")) or name == "SLURM_CONF"
            },
            **store_env(store.storage_options, store.pointers),
            NODE_KEY: key.hex(),
            CONDUCTOR: f"wss://{conductor.address}:{conductor.port}",
        }


def _is_preempted(message: object) -> bool:
    if not isinstance(message, NodeExit) or message.error is None:
        return False
    return isinstance(from_json(message.error), Preempted)


def slurm(*command: str, text: str = "", environ: Mapping[str, str] | None = None) -> str:
    """What a command of Slurm prints.

    Raises:
        UsageError: there is no Slurm here, or it refuses the command.
        StorageUnavailable: slurmctld does not answer.
    """
    try:
        done = subprocess.run(
            command, input=text, env=environ, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no {command[0]} on this machine, so no job can be queued.",
            remedy="Run where Slurm's commands are, such as on a login node.",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise StorageUnavailable(f"Slurm does not answer: {command[0]} took more than {COMMAND_S:g} s.") from error
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    if re.search(r"[Uu]nable to contact|[Cc]ommunication|timed out|[Cc]onnect|[Ss]ocket", said):
        raise StorageUnavailable(f"Slurm does not answer: {said}")
    raise UsageError(f"Slurm refuses the job: {said}")


def main() -> None:
    """Run the node of this task of the job: its supervisor, in this process."""
    store, training, generation = sys.argv[1:]
    node = os.environ["SLURM_PROCID"]
    os.environ[NODE] = os.environ.get(NODE) or os.environ["SLURMD_NODENAME"]
    os.environ[ADDRESS] = own_address([os.environ[CONDUCTOR]])
    with scratch.make("node") as folder:
        os.environ[SCRATCH] = str(folder.path / "scratch")
        stop = folder.path / "stop"
        os.environ[stopping.STOP_FILE] = str(stop)

        def planned(_number: int, _frame: FrameType | None) -> None:
            stop.touch()
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGUSR1, planned)
        sys.argv = [sys.argv[0], store, training, generation, node]
        supervisor.main()


if __name__ == "__main__":
    main()
