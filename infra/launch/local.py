"""Nodes as processes on this machine: the launcher `local`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from infra.launch.child import PARENT, log_tail
from infra.launch.node import ADDRESS, STORE_OPTIONS
from infra.launch.processes import end, marked_env, module_command, new_mark, state
from infra.launch.ranks import SCRATCH

LOOPBACK = "127.0.0.1"


class Handle(Protocol):
    """A node that was launched, wherever it runs."""

    def ended(self) -> str | None:
        """How the node's supervisor ended, as the end of a sentence (`ended with exit code 1`); None while it runs."""

    def log(self) -> str:
        """The end of what the supervisor printed."""

    def told(self) -> str:
        """What whoever starts it says of a node that has not answered (`its run is Late`); "" if nothing."""

    def kill(self) -> None:
        """End the node with every descendant; return when none is left, or when one outlives being killed."""


Start = Callable[[int, int], Handle]


class Room(Protocol):
    """What admits nodes: room for all of them, or for none."""

    def take(self, nodes: int) -> str | None:
        """Ask for room for `nodes` in all, with what is held already; None once it is held, else what is waited for.

        Does not wait itself; raises an error of the tree if waiting has no end.
        """

    def give_back(self) -> None:
        """Give all room back."""


class LocalNode:
    """One node's supervisor as a process with a mark and a session of its own.

    Args:
        with_parent: whether it ends, with all that it started, once this process is gone.
    """

    def __init__(self, arguments: list[str], env: Mapping[str, str], *, with_parent: bool = False) -> None:
        self._mark = new_mark()
        self._folder = tempfile.TemporaryDirectory(prefix="trainwright-node-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log.txt"
        own = {SCRATCH: str(Path(self._folder.name) / "scratch"), PARENT: str(os.getpid()) if with_parent else ""}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                module_command("infra.launch.node", *arguments),
                env=marked_env(self._mark, {**env, **own}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP), and so hears nothing."""
        return state(self.pid) == "T"

    def log(self) -> str:
        """The end of what it printed."""
        return log_tail(self._log)

    def told(self) -> str:
        """Nothing: its log says it all."""
        return ""

    def terminate(self) -> None:
        """Ask it to save a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it with every descendant, and remove its scratch."""
        end(self._mark, self._process)
        self._folder.cleanup()


def local(store_uri: str, store_options: Mapping[str, Any], training: str) -> Start:
    """A function that starts node `node` of generation `generation` of a training on this machine."""
    env = {STORE_OPTIONS: json.dumps(dict(store_options)), ADDRESS: LOOPBACK}

    def start(generation: int, node: int) -> Handle:
        return LocalNode([store_uri, training, str(generation), str(node)], env)

    return start
