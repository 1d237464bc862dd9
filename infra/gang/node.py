"""Nodes as processes on this machine, the launcher `local`; and the address at which other nodes reach this host."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from infra import scratch
from infra.child import log_tail
from infra.gang.rank_files import ADDRESS, NODE_KEY, SCRATCH, generation_key, launch_key, store_env
from infra.processes.child_main import PARENT
from infra.processes.processes import end, marked_env, module_command, new_mark, state

LOOPBACK = "127.0.0.1"


class Handle(Protocol):
    """A launched node, wherever it runs."""

    def ended(self) -> str | None:
        """How the node's supervisor ended, as the end of a sentence (`ended with exit code 1`); None while it runs."""

    def runs_here(self) -> bool:
        """Whether it is a running process of this machine: then its silence may only say that the machine is busy."""

    def log(self) -> str:
        """The end of what the supervisor printed."""

    def status(self) -> str:
        """What the launcher says of a node that has not answered (`its run is Late`); "" if nothing."""

    def kill(self) -> None:
        """End the node and all its descendants; return when none is left, or when one outlives being killed."""


Start = Callable[[int, int], Handle]


class SlotReservation(Protocol):
    """Admits nodes: all of them, or none."""

    def take(self, nodes: int) -> str | None:
        """Ask for slots for `nodes` in all, including those held already.

        Returns None once it is held, else the reason to wait. Does not wait itself; raises one of our errors if waiting
        could never end.
        """

    def give_back(self) -> None:
        """Give all slots back."""


def local(store_uri: str, store_options: Mapping[str, Any], training: str, pointers: str | None = None) -> Start:
    """A function that starts node `node` of generation `generation` of a training on this machine."""
    env = {**store_env(store_options, pointers), ADDRESS: LOOPBACK}

    def start(generation: int, node: int) -> Handle:
        key = generation_key(launch_key(store_uri, training), generation)
        return LocalNode([store_uri, training, str(generation), str(node)], {**env, NODE_KEY: key.hex()})

    return start


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

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP) and so handles no signal."""
        return state(self.pid) == "T"

    def runs_here(self) -> bool:
        """Whether it runs, and is not stopped."""
        return self.ended() is None and not self.is_stopped

    def log(self) -> str:
        """The end of what the process printed."""
        return log_tail(self._log)

    def status(self) -> str:
        """Always "": the log says everything."""
        return ""

    def terminate(self) -> None:
        """Ask the node to save a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process and all its descendants, and remove its scratch."""
        end(self._mark, self._process)
        self._folder.close()


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
