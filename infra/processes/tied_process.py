"""Starts a process that ends with this one (`tied_to_parent`), and interrupts or kills it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from infra.processes.processes import marked_env, module_command


class TiedProcess:
    """A module that runs in a process and session of its own, tied to this process.

    Args:
        mark: of the process and its descendants.
        output, log: the files that its standard output and its standard error replace.
    """

    def __init__(self, module: str, *arguments: str, mark: str, output: Path, log: Path) -> None:
        command = module_command("infra.processes.tied_to_parent", module, *arguments)
        with output.open("wb") as to_output, log.open("wb") as to_log:
            self._process = subprocess.Popen(
                command,
                env=marked_env(mark),
                stdin=subprocess.DEVNULL,
                stdout=to_output,
                stderr=to_log,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it works."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it and wait until it is gone; its descendants notice its end themselves."""
        self._process.kill()
        self._process.wait()

    def interrupt(self, grace_s: float) -> bool:
        """Interrupt it as Ctrl-C does; returns whether it ended within the time. Does nothing after its end."""
        if self._process.poll() is not None:
            return True
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return False
        return True
