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

from data_contracts.canonical import digest
from data_contracts.errors import (
    Cancelled,
    GangIncomplete,
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
from infra.gang.membership import Membership, Placement, SlotReservation
from infra.gang.node import in_url, own_address
from infra.gang.rank_files import ADDRESS, NODE_KEY, SCRATCH, generation_key, launch_key, store_env
from infra.processes.environment import for_user_code
from infra.processes.processes import module_command, uninterrupted
from infra.records.nodes import NODE
from infra.settings import state_folder
from infra.store import Store

# Between two questions to slurmctld, whatever the number of nodes.
ASK_S = 2.0
# The same, while nodes have ended and the job has not.
SETTLED_S = 0.5
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
OVER = frozenset(("COMPLETED", "FAILED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", *CAUSES))
# Another job has the machines, until it is over.
SUSPENDED = frozenset(("SUSPENDED", "STOPPED"))
WAITING = frozenset(("", "PENDING", "CONFIGURING"))
_OPTION = re.compile(r"[a-z][a-z-]{1,40}")
# What the launcher decides itself.
_OURS = frozenset(
    (
        *("array", "error", "export", "job-name", "no-requeue", "nodes", "ntasks", "ntasks-per-node", "output"),
        *("clusters", "export-file", "get-user-env", "parsable", "partition", "qos", "requeue", "signal", "wrap"),
    )
)

log = logging.getLogger("trainwright")


class SlurmLauncher:
    """Queues a job for each generation of a training, in a partition; a `queue` is a quality of service.

    Raises: UsageError if there is no Slurm here, or a job variable is no option of `sbatch` that a spec can set.
    """

    slots: SlotReservation | None = None  # the partition's queue admits

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        for name, value in placement.job_variables.items():
            # `sbatch` takes the beginning of an option's name for the option.
            is_ours = any(option.startswith(name) for option in _OURS)
            if not _OPTION.fullmatch(name) or is_ours or not str(value).isprintable():
                raise UsageError(
                    f"{placement.section}.job_variables.{name}: is not an option of sbatch that can be set here.",
                    remedy="Use long names without the dashes before them, such as account, time or gres.",
                )
        hosts = re.findall(r"^SlurmctldHost\S*\s*=\s*(\S+?)(?:\((\S+)\))?$", slurm("scontrol", "show", "config"), re.M)
        self.address = own_address([f"slurm://{in_url(address or name)}:6817" for name, address in hosts])

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> SlurmNodes:
        """The nodes of a generation."""
        return SlurmNodes(store, launch, hub, self.options(launch.least_nodes, launch.nodes))

    def options(self, least: int, most: int) -> dict[str, str]:
        """`sbatch`'s options for a job of `least` to `most` nodes, whatever the generation."""
        placement = self.placement
        # With a number of tasks, Slurm gives no more machines than those tasks need.
        options = {"partition": placement.pool, "nodes": f"{least}-{most}"}
        if placement.queue:
            options["qos"] = placement.queue
        if placement.labels:
            options["comment"] = ",".join(f"{name}={value}" for name, value in sorted(placement.labels.items()))
        given = {name: str(value) for name, value in placement.job_variables.items()}
        if placement.needs_gpus and not any(name.startswith(("gres", "gpus")) for name in given):
            has_gpus = "gpu" in slurm("sinfo", "--noheader", f"--partition={placement.pool}", "--format=%G")
            options |= {"gpus-per-node": str(placement.devices)} if has_gpus else {}
        return {**options, **given}


class SlurmNodes(Membership):
    """The nodes of a generation as the tasks of a job, in the order of their numbers."""

    def __init__(self, store: Store, launch: Launch, hub: Hub, options: Mapping[str, str]) -> None:
        super().__init__(store, launch, hub)
        self.job, self._state, self._reason = "", "", ""
        self._given: int | None = None  # machines of the job, once Slurm has said it
        self._options, self._printed = options, state_folder() / "slurm"
        self._excluded: list[str] = []
        self._next_look = 0.0
        self._stopped = threading.Event()
        self._undecided: list[News] = []

    def start(self, nodes: Collection[int]) -> None:
        """Queue the job. Machines that are left out are excluded, so no node needs another in its place."""
        if self.job:
            return
        self._printed.mkdir(mode=0o700, exist_ok=True)
        with uninterrupted():  # a signal in between would leave a job that nobody knows
            if self.launch.generation:  # whose conductor may have died while its job was in the queue
                slurm("scancel", "--me", f"--name={self._name(self.launch.generation - 1)}")
            # A job whose number did not arrive here is found by its name.
            known = re.findall(
                r"^\d+$", slurm("squeue", "--me", "--noheader", f"--name={self.name}", "--format=%i"), re.M
            )
            self.job = known[0] if known else self._queue()
        threading.Thread(target=self._follow, name="slurm", daemon=True).start()

    def _queue(self) -> str:
        if self.launch.left_out:
            # `sbatch` refuses names that it does not know, such as of hosts that were drained elsewhere.
            known = slurm("sinfo", "--noheader", "--Node", "--format=%N").split()
            self._excluded = sorted(set(known).intersection(self.launch.left_out))
        try:
            said = slurm(*self.command(), text=self.script(), environ=self._environ())
        except UsageError as error:
            if not self.launch.withdrawn:
                raise
            raise GangIncomplete(f"{error.message} It was to do without {', '.join(self._excluded)}.") from error
        if (job := re.search(r"^(\d+)(;|$)", said, re.M)) is None:
            raise StorageUnavailable(f"Slurm does not say which job it has queued: {said.strip()!r}.")
        return job[1]

    @property
    def name(self) -> str:
        """The job's name, which no other generation has."""
        return self._name(self.launch.generation)

    def _name(self, generation: int) -> str:
        training = self.launch.training
        which = digest([self.store.uri, training, generation])[:8]
        return f"{training.rpartition('/')[2][:12]}-g{generation}-{which}"

    def command(self) -> list[str]:
        """The command that queues the job."""
        launch = self.launch
        options = {
            "job-name": self.name,
            "output": str(self._printed / "%j.txt"),
            "signal": f"USR1@{round(launch.grace_s) + 60}",
            **self._options,
        }
        if excluded := ",".join(filter(None, [self._options.get("exclude"), *self._excluded])):
            options["exclude"] = excluded
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
        # Since Slurm 22.05 `srun` does not take this number from its job by itself.
        cpus = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
        return f"#!/bin/sh\nexec srun --kill-on-bad-exit=0 --wait=0 --ntasks-per-node=1 {cpus} {node}\n"

    def ended(self) -> Mapping[int, Ended]:
        """All nodes, once the job is over; before, those for which Slurm gave the job no machine."""
        nodes = range(self.launch.nodes if self.job else 0)
        given = self.launch.nodes if self._given is None else self._given
        missing = Ended(f"was not started: Slurm gave its job {self.job} {given} of {self.launch.nodes} machines")
        if self._state in SUSPENDED:
            return dict.fromkeys(
                nodes, Ended(f"was stopped with its Slurm job {self.job}: {self._in_words()}", Preempted)
            )
        if self._state not in OVER:
            return dict.fromkeys(nodes[given:], missing)
        how = f"ended as its Slurm job {self.job} did: {self._in_words()}"
        return dict.fromkeys(nodes, Ended(how, CAUSES.get(self._state, NodeLost), self._state == "NODE_FAIL"))

    def news(self) -> list[News]:
        """What has come. Slurm sends SIGTERM both to cancel and to preempt; the job's last state says which."""
        found = [*self._undecided, *super().news()]
        self._undecided = [one for one in found if _is_preempted(one.message)]
        if not self._undecided:
            return found
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + SETTLED_S
            self._look()
        if self._state != "COMPLETING":
            self._undecided = []
        cancelled = Ended(f"was cancelled in Slurm, with its job {self.job}", Cancelled)
        others = [one for one in found if one not in self._undecided]
        if self._state != "CANCELLED":
            return others
        return [one._replace(message=cancelled) if _is_preempted(one.message) else one for one in others]

    def waits(self) -> str:
        """The job's place in the queue, until Slurm gives it machines."""
        return f"its Slurm job {self.job} is {self._in_words()}" if self.job and self._state in WAITING else ""

    def may_be_silent(self, node: int) -> bool:
        """Whether it has said how it ended, and the job's last state is awaited: a machine may clean up for long."""
        return any(one.node == node for one in self._undecided)

    def status(self, node: int) -> str:
        """What Slurm says of the job."""
        return f"its Slurm job {self.job} is {self._in_words()}" if self.job else ""

    def log(self, node: int) -> str:
        """The end of what all nodes of the job printed, where this machine can read it."""
        return log_tail(self._printed / f"{self.job}.txt") if (self._printed / f"{self.job}.txt").exists() else ""

    def end(self, nodes: Collection[int]) -> None:
        """Wait until the nodes have said how they ended, at most END_S; then Slurm ends the job, if it is all of it."""
        if not self.job:
            with contextlib.suppress(StorageUnavailable, UsageError):  # it may be queued, and its number have been lost
                slurm("scancel", "--me", f"--name={self.name}")
            return
        is_whole = len(nodes) >= self.launch.nodes
        deadline = time.monotonic() + END_S
        while self._state not in OVER and self._state not in WAITING and time.monotonic() < deadline:
            if not is_whole and self.hub.left.issuperset(nodes):
                break
            time.sleep(0.2)
            self._look()
        if not is_whole:
            return
        deadline = time.monotonic() + KILL_S
        while self._state not in OVER and time.monotonic() < deadline:
            with contextlib.suppress(StorageUnavailable, UsageError):
                slurm("scancel", self.job)
            self._look()
            time.sleep(0.2)
        self._stopped.set()
        if self._state not in OVER:
            log.warning("Slurm did not end the job %s: it is %s", self.job, self._in_words())

    def _follow(self) -> None:
        while not self._stopped.wait(ASK_S) and self._state not in OVER:
            self._look()

    def _look(self) -> None:
        """Ask for the job's state; what is known stays if slurmctld does not answer, as while it restarts."""
        with contextlib.suppress(StorageUnavailable, UsageError):
            try:
                said = slurm("squeue", "--noheader", "--states=all", "--format=%T %D %r", f"--jobs={self.job}")
            except UsageError as error:
                if "Invalid job id" in error.message and self._state not in OVER:
                    self._state, self._reason = "FAILED", "Slurm no longer knows it"
                raise
            if (line := re.search(r"^([A-Z_]+) (\d+) (.*)$", said, re.M)) is not None:
                self._state, self._reason = line[1], line[3].strip()
                if self._state not in WAITING and self._given is None:
                    self._given = int(line[2])

    def _in_words(self) -> str:
        state = self._state or "PENDING"
        return f"{state} ({self._reason})" if self._reason not in ("", "None") else state

    def _environ(self) -> dict[str, str]:
        store, training = self.store, self.launch.training
        key = generation_key(launch_key(store.uri, training), self.launch.generation)
        conductor = self.launch.conductor
        assert conductor is not None, "its hub listens"
        kept = for_user_code(os.environ, {"store": store.address.to_json()})
        return {
            **{name: value for name, value in kept.items() if not _is_of_this_machine(name)},
            **store_env(store.storage_options, store.pointers),
            NODE_KEY: key.hex(),
            CONDUCTOR: f"wss://{in_url(conductor.address)}:{conductor.port}",
        }


def _is_of_this_machine(name: str) -> bool:
    """Whether a variable says what holds here alone: this machine's address and name, the job that runs it, and what a
    person's own questions to Slurm show.
    """
    prefixes = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_", "SCONTROL_")
    return name in (ADDRESS, NODE) or (name.startswith(prefixes) and name != "SLURM_CONF")


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
            command,
            input=text,
            env={name: value for name, value in (environ or os.environ).items() if not _is_of_this_machine(name)},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
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
    if "node configuration is not available" not in said and re.search(
        r"[Uu]nable to contact|[Cc]ommunication|timed out|[Cc]onnect|[Ss]ocket"
        r"|transmitted or received|[Aa]uthentication|standby|temporarily|not available",
        said,
    ):
        raise StorageUnavailable(f"Slurm does not answer: {said}")
    raise UsageError(f"Slurm refuses the job: {said}")


def main() -> None:
    """Run the node of this task of the job: its supervisor, in this process."""
    store, training, generation = sys.argv[1:]
    node = os.environ["SLURM_PROCID"]
    os.environ[NODE] = os.environ["SLURMD_NODENAME"]
    os.environ[ADDRESS] = own_address([os.environ[CONDUCTOR]])
    with scratch.make("node") as folder:
        os.environ[SCRATCH] = str(folder.path / "scratch")
        stop = folder.path / "stop"
        os.environ[stopping.STOP_FILE] = str(stop)

        # Slurm warns every process of the node. Those that this one starts inherit that the signal is held back.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

        def hear_warning() -> None:
            signal.sigwait([signal.SIGUSR1])
            stop.touch()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=hear_warning, name="warning", daemon=True).start()
        sys.argv = [sys.argv[0], store, training, generation, node]
        supervisor.main()


if __name__ == "__main__":
    main()
