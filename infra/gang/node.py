"""Nodes as processes on this machine, the launcher `local`; and the address at which other nodes reach this host."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from data_contracts.errors import NodeLost, Preempted
from data_contracts.messages.gang import Launch
from infra import scratch
from infra.child import log_tail
from infra.gang.hub import Ended, Hub
from infra.gang.membership import Membership, SlotReservation
from infra.gang.rank_files import ADDRESS, NODE_KEY, SCRATCH, generation_key, launch_key, store_env
from infra.gang.supervisor import TAKEN
from infra.processes.child_main import PARENT
from infra.processes.processes import end, marked_env, module_command, new_mark, state, uninterrupted
from infra.store import Store

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LocalLauncher:
    """Starts nodes as processes of this machine."""

    slots: SlotReservation | None = None
    address: str = LOOPBACK

    def __call__(self, store: Store, launch: Launch, hub: Hub) -> LocalNodes:
        """The nodes of a generation."""
        return LocalNodes(store, launch, hub)


class LocalNodes(Membership):
    """Nodes as processes of this machine, by number."""

    def __init__(self, store: Store, launch: Launch, hub: Hub) -> None:
        super().__init__(store, launch, hub)
        self.nodes: dict[int, LocalNode] = {}

    def start(self, nodes: Collection[int]) -> None:
        """Start them; a signal in between waits, or it would leave a process that nobody knows."""
        store, training, generation = self.store, self.launch.training, self.launch.generation
        key = generation_key(launch_key(store.uri, training), generation)
        env = {**store_env(store.storage_options, store.pointers), ADDRESS: LOOPBACK, NODE_KEY: key.hex()}
        for node in nodes:
            if node not in self.nodes:
                with uninterrupted():
                    self.nodes[node] = LocalNode([store.uri, training, str(generation), str(node)], env)

    def ended(self) -> Mapping[int, Ended]:
        """Those whose processes have ended."""
        return {
            number: Ended(how, Preempted if node.is_asked else NodeLost)
            for number, node in self.nodes.items()
            if (how := node.ended()) is not None
        }

    def status(self, node: int) -> str:
        """Always "": the log says everything."""
        return ""

    def log(self, node: int) -> str:
        """The end of what the process printed; "" if none was started."""
        return self.nodes[node].log() if node in self.nodes else ""

    def end(self, nodes: Collection[int]) -> None:
        """Kill the processes and all their descendants; one that cannot be killed keeps none of the others."""
        with contextlib.ExitStack() as stack:
            for node in nodes:
                if node in self.nodes:
                    stack.callback(self.nodes[node].kill)

    def may_be_silent(self, node: int) -> bool:
        """Whether it runs, and is not stopped."""
        return node in self.nodes and self.nodes[node].ended() is None and not self.nodes[node].is_stopped


LOCAL = LocalLauncher()


class LocalNode:
    """One node's supervisor as a process with its own mark and session.

    Args:
        with_parent: whether it ends, with all its descendants, when this process ends.
    """

    def __init__(self, arguments: list[str], env: Mapping[str, str], *, with_parent: bool = False) -> None:
        self._mark = new_mark()
        self._folder = scratch.make("node", mark=self._mark)
        self._log = self._folder.path / "log.txt"
        own = {SCRATCH: str(self._folder.path / "scratch"), PARENT: str(os.getpid()) if with_parent else ""}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                module_command("infra.gang.supervisor", *arguments),
                env=marked_env(self._mark, {**scratch.variables(self._folder.path), **env, **own}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=self._folder.handles,
            )

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    @property
    def is_taken(self) -> bool:
        """Whether it ended because another process is this node already."""
        return self._process.poll() == TAKEN

    @property
    def is_asked(self) -> bool:
        """Whether SIGTERM has ended it, before it could handle that."""
        return self._process.poll() == -signal.SIGTERM

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP) and so handles no signal."""
        return state(self._process.pid) == "T"

    def log(self) -> str:
        """The end of what the process printed."""
        return log_tail(self._log)

    def terminate(self) -> None:
        """Ask the node to save a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process and all its descendants, and remove its scratch."""
        end(self._mark, self._process)
        self._folder.close()


def in_url(address: str) -> str:
    """A host's name or address as URLs write it."""
    return f"[{address}]" if ":" in address else address


def own_address(peers: Iterable[str]) -> str:
    """TRAINWRIGHT_ADDRESS, else the address from which this host reaches the first of `peers` (URLs) on another host.

    Loopback if all peers are on this host: then the other nodes are, too.
    """
    if named := os.environ.get(ADDRESS):
        return named
    for url in peers:
        found = _towards(url)
        if found is not None and not ipaddress.ip_address(found).is_loopback:
            return found
    return LOOPBACK


def _towards(url: str) -> str | None:
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    with contextlib.suppress(OSError):
        for family, kind, _, _, target in socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM):
            # Connecting a datagram socket sends nothing: it only chooses the route.
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
    return None
