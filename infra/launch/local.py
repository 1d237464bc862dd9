"""Nodes as processes on this machine: the launcher `local`."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from infra.launch.child import log_tail
from infra.launch.node import ADDRESS, STORE_OPTIONS
from infra.launch.processes import end, marked_env, module_command, new_mark
from infra.launch.ranks import SCRATCH

LOOPBACK = "127.0.0.1"


class Handle(Protocol):
    """A node that was launched, wherever it runs."""

    def ended(self) -> str | None:
        """How the node's supervisor ended, as the end of a sentence (`ended with exit code 1`); None while it runs."""

    def log(self) -> str:
        """The end of what the supervisor printed."""

    def kill(self) -> None:
        """End the node with every descendant; return when none is left, or when one outlives being killed."""


Start = Callable[[int, int], Handle]


class LocalNode:
    """One node's supervisor as a process with a mark and a session of its own."""

    def __init__(self, arguments: list[str], env: Mapping[str, str]) -> None:
        self._mark = new_mark()
        self._folder = tempfile.TemporaryDirectory(prefix="trainwright-node-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log.txt"
        scratch = {SCRATCH: str(Path(self._folder.name) / "scratch")}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                module_command("infra.launch.node", *arguments),
                env=marked_env(self._mark, {**env, **scratch}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def log(self) -> str:
        """The end of what it printed."""
        return log_tail(self._log)

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
