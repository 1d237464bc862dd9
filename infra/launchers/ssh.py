"""Run a gang's nodes on machines that `ssh` reaches: the launcher `ssh`.

The machines need Trainwright at the same path, and nothing else: no agent. `ssh` starts this module there, which is the
node's supervisor. What a node must know goes through the connection's input, never onto a command line. When the
connection ends, so does the node; and if the network keeps that from it, when the conductor's lease stands still.

`ssh` reads the person's own configuration (keys, jump hosts, ports); here it asks nothing, and knows each machine's key
already, or refuses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from data_contracts.errors import GangIncomplete, NodeLost, Preempted, TrainwrightError, UsageError
from data_contracts.messages.gang import Launch
from infra import scratch
from infra.child import log_tail
from infra.gang import supervisor
from infra.gang.hub import Ended, Hub
from infra.gang.membership import Membership, Placement, SlotReservation
from infra.gang.node import in_url, own_address
from infra.gang.rank_files import ADDRESS, NODE_KEY, SCRATCH, generation_key, launch_key, store_env
from infra.processes.environment import needed_values
from infra.processes.processes import module_command, uninterrupted
from infra.records.nodes import NODE
from infra.store import Store

# Nodes that have been told to end get this long to say how.
END_S = 8.0
CONNECT_S = 20
# The code with which `ssh` ends by itself, and how soon it tries again to reach a host.
UNREACHED, RETRY_S = 255, 5.0
# What a host's shell says of a node by the code: that there is nothing to start, and that SIGTERM has ended it, as when
# the host is shut down.
CAUSES: Mapping[int, type[TrainwrightError]] = {126: GangIncomplete, 127: GangIncomplete, 143: Preempted}
_HOST = re.compile(r"((?!-)[\w.:@%-]+)(?: slots=([1-9][0-9]{0,3}))?")
# A connection over which nothing comes for so long is cut.
ALIVE_S, MISSED = 5, 3


class SshLauncher:
    """Starts nodes on the hosts of the file that the placement names, in their order.

    Attributes:
        hosts: as `ssh` knows them; one with several slots stands there as often.

    Raises: UsageError for a file without hosts, or with a line that is none.
    """

    slots: SlotReservation | None = None

    def __init__(self, placement: Placement) -> None:
        self.hosts = read_hosts(Path(placement.pool), f"{placement.section}.pool")
        self.address = own_address([f"ssh://{in_url(_reached_at(host))}:22" for host in self.hosts])

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> SshNodes:
        """The nodes of a generation."""
        return SshNodes(store, launch, hub, self.hosts)


class SshNodes(Membership):
    """The nodes of a generation, each behind a connection."""

    def __init__(self, store: Store, launch: Launch, hub: Hub, hosts: Sequence[str]) -> None:
        super().__init__(store, launch, hub)
        self._hosts = [host for host in hosts if _name(host) not in launch.left_out]
        self._printed = scratch.make("ssh")
        self.connections: dict[int, subprocess.Popen[bytes]] = {}
        self._next_try, self._ending = time.monotonic() + RETRY_S, False
        self._tried_again: set[int] = set()

    def start(self, nodes: Collection[int]) -> None:
        """Connect to the hosts; which of them answers shows in the roll-call."""
        for node in nodes:
            if node not in self.connections and node < len(self._hosts):
                told = (json.dumps({**self._node_variables(), NODE: _name(self._hosts[node])}) + "\n").encode()
                with uninterrupted():
                    self.connections[node] = self._connect(node, told)

    def ended(self) -> Mapping[int, Ended]:
        """Nodes whose connection has ended, and those for which there is no host."""
        self._connect_again()
        codes = {node: process.poll() for node, process in self.connections.items()}
        missing = Ended("was not started, because no host is left for it", GangIncomplete)
        return {
            **dict.fromkeys(range(len(self._hosts), self.launch.nodes), missing),
            **{
                node: Ended(self._how(node, code), CAUSES.get(code, NodeLost))
                for node, code in codes.items()
                if code is not None and not self._is_unreached(node)
            },
        }

    def _is_unreached(self, node: int) -> bool:
        """Whether `ssh` ended without a connection (its own code, 255) to a node that has not joined."""
        return self.connections[node].poll() == UNREACHED and node not in self.hub.joined

    def _connect_again(self) -> None:
        """Try hosts again that were not reached, such as one that boots, or whose `sshd` lets few in at once."""
        if time.monotonic() < self._next_try or self._ending:
            return
        self._next_try = time.monotonic() + RETRY_S
        unreached = [node for node in self.connections if self._is_unreached(node)]
        for node in unreached:
            del self.connections[node]
        self._tried_again.update(unreached)
        self.start(unreached)

    def status(self, node: int) -> str:
        """Where it is, and whether it was reached; or that there are fewer hosts."""
        if node >= len(self._hosts):
            return "no host is left for it"
        if node in self.connections and self._is_unreached(node):
            return f"{self._hosts[node]} was not reached"
        if node in self._tried_again and node not in self.hub.joined:
            return f"{self._hosts[node]} was not reached, and is tried again"
        return f"on {self._hosts[node]}"

    def log(self, node: int) -> str:
        """The end of what the node, or ssh, printed."""
        return log_tail(self._log(node)) if node in self.connections else ""

    def end(self, nodes: Collection[int]) -> None:
        """Wait for the nodes' own end, at most END_S, then end their connections, and with them all processes there."""
        self._ending = self._ending or len(nodes) >= self.launch.nodes
        ours = {node: self.connections[node] for node in nodes if node in self.connections}
        deadline = time.monotonic() + END_S
        while any(process.poll() is None for process in ours.values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in ours.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in ours.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()

    def _connect(self, node: int, told: bytes) -> subprocess.Popen[bytes]:
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "ConnectTimeout": CONNECT_S,
            "ServerAliveInterval": ALIVE_S,
            "ServerAliveCountMax": MISSED,
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        arguments = [self.store.uri, self.launch.training, str(self.launch.generation), str(node)]
        found_by = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []
        there = shlex.join(["env", *found_by, *module_command(__name__, *arguments)])
        with self._log(node).open("ab") as output:
            process = subprocess.Popen(
                ["ssh", "-T", *words, "--", self._hosts[node], there],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it shows in `ended` why there is no connection
            process.stdin.write(told)
            process.stdin.flush()
        return process

    def _node_variables(self) -> dict[str, str]:
        """The variables of a node: its key, and what opens the store."""
        store, launch, conductor = self.store, self.launch, self.launch.conductor
        assert conductor is not None, "its hub listens"
        key = generation_key(launch_key(store.uri, launch.training), launch.generation)
        passed = needed_values({"store": store.address.to_json()})
        own = {NODE_KEY: key.hex(), "conductor": f"wss://{in_url(conductor.address)}:{conductor.port}"}
        return {**passed, **store_env(store.storage_options, store.pointers), **own}

    def _how(self, node: int, code: int) -> str:
        where = f"on {self._hosts[node]}"
        return f"{where} ended with code {code}" if code != UNREACHED else f"{where} has lost its connection"

    def _log(self, node: int) -> Path:
        return self._printed.path / f"node-{node}.txt"


def read_hosts(path: Path, field: str) -> list[str]:
    """The hosts of a file, a line for each (`NAME`, or `NAME slots=N`), each as often as it has slots.

    Raises: UsageError with the file and line, or for a file that cannot be read.
    """
    remedy = "Write a file with a host on each line, such as `gpu-7 slots=2`."
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{field}: {path} cannot be read as a file of hosts: {error}.", remedy=remedy) from error
    hosts: list[str] = []
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            found = _HOST.fullmatch(" ".join(words))
            if found is None:
                sentence = f"{path}:{number}: {line.strip()!r} is not a host."
                raise UsageError(sentence, remedy="Write its name as ssh knows it, and slots=N if it has several.")
            hosts += [found[1]] * int(found[2] or 1)
    if not hosts:
        raise UsageError(f"{field}: {path} names no host.", remedy=remedy)
    return hosts


def _reached_at(host: str) -> str:
    """The name or address that a person's configuration of ssh has for a host."""
    try:
        done = subprocess.run(["ssh", "-G", "--", host], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UsageError("There is no ssh on this machine.", remedy="Install OpenSSH's client.") from error
    found = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
    return found[1] if found is not None else _name(host)


def _name(host: str) -> str:
    """A host's name without the user's."""
    return host.rpartition("@")[2]


def end_with_input(stream: IO[bytes]) -> None:
    """Ask this process to end when its input ends, with all that it started."""
    while stream.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the node that the command line names, as its input says, until that ends."""
    told = json.loads(sys.stdin.buffer.readline())
    address = own_address([told.pop("conductor")])
    os.environ.update(told)
    os.environ[ADDRESS] = address
    threading.Thread(target=end_with_input, args=(sys.stdin.buffer,), daemon=True).start()
    with scratch.make("node") as folder:
        os.environ[SCRATCH] = str(folder.path / "scratch")
        supervisor.main()


if __name__ == "__main__":
    main()
