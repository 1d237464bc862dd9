"""Processes of ours that outlive the command that started them: the Prefect server and the worker.

A service is known by a state file (pid, mark, address) in the state folder. It counts as ours only while the process
with that pid carries that mark in its environment. So a pid that was reused, or a stranger's process on the same port,
is never used and never signalled. The mark is safer than a start time, which shifts when the clock is set.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from infra import files, scratch
from infra.files import replace_private
from infra.processes.processes import MARK, find_marked, is_alive, kill_marked, marked_env, uninterrupted
from infra.settings import state_folder

# A shell starts jobs with `&` with SIGINT ignored, and all children inherit that. A worker that inherits it ignores its
# first signal and continues to take runs.
_FRESH_SIGNALS = (
    "import os, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True)
class Service:
    """One started service.

    Attributes:
        name: `server` or `worker`; the state file is `<name>.json`, its log `<name>.log`.
        mark: the mark in the environment of the process and all its descendants.
        url: address of the Prefect API that it serves or uses.
    """

    name: str
    pid: int
    mark: str
    url: str

    @property
    def log(self) -> Path:
        """The file with what the service printed since its start."""
        return state_folder() / f"{self.name}.log"

    def is_running(self) -> bool:
        """Whether the process runs and is ours."""
        return self.pid in find_marked(self.mark)

    def variable(self, name: str) -> str | None:
        """A variable of the process's environment; None if it is not set, or the process has ended."""
        try:
            return psutil.Process(self.pid).environ().get(name)
        except psutil.Error:
            return None

    def last_words(self) -> str:
        """The last line of the service's log, or ''."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def stop(self, grace_s: float) -> bool:
        """End the service and all its descendants, with SIGTERM and `grace_s` seconds first; False if nothing ran."""
        running = self.is_running()
        if running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while is_alive(self.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
        # Also if it ended by itself: its descendants may still run.
        return bool(kill_marked(self.mark)) or running


def read(name: str) -> Service | None:
    """The service that the state file names, running or not; None without a readable file."""
    try:
        return Service(name, **json.loads((state_folder() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def forget(name: str) -> None:
    """Delete the state file of a service that was stopped on purpose; one that died keeps it."""
    (state_folder() / f"{name}.json").unlink(missing_ok=True)


def running(name: str) -> Service | None:
    """The service, if it runs and is ours; else None."""
    service = read(name)
    return service if service is not None and service.is_running() else None


def start(
    name: str,
    command: Sequence[str],
    *,
    mark: str,
    env: Mapping[str, str],
    url: str,
    wait: Callable[[Service], None],
    inherit: Sequence[int] = (),
) -> Service:
    """Start a service detached from this terminal, in the state folder, with its output in its log.

    Args:
        env: its whole environment, from `environment`.
        wait: returns once the service is ready; any exception in it, including a signal's, ends the service again.
        inherit: file descriptors that the service takes over.
    """
    folder = state_folder()
    log = folder / f"{name}.log"
    if log.exists():
        log.replace(folder / f"{name}.previous.log")
    try:
        with open(log, "wb", opener=_private) as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _FRESH_SIGNALS, *command],
                env=dict(env),
                # Not the caller's folder: Prefect would read its .env and prefect.toml.
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherit,
            )
        service = Service(name, process.pid, mark, url)
        fields = asdict(service)
        del fields["name"]
        # Another user who knows the mark could present their own process as ours.
        replace_private(folder / f"{name}.json", json.dumps(fields))
        wait(service)
    except BaseException:
        with uninterrupted():
            kill_marked(mark)
        raise
    return service


def environment(mark: str) -> dict[str, str]:
    """This process's environment for a service, with `mark` as its only mark.

    A service outlives the run that happened to start it, so it must not be found as that run's descendant. In its
    TMPDIR no other user can take a name that Prefect is about to use.
    """
    return {**marked_env(mark), MARK: mark, "TMPDIR": str(scratch.unshared_root())}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold this state folder's lock, so that of two commands one starts a service and the other finds it."""
    with files.locked(state_folder() / "services.lock"):
        yield
