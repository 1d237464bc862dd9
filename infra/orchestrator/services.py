"""Processes of ours that outlive the command that started them: the Prefect server and the worker.

A service is known by a state file (pid, mark, address) in the state folder, and it counts as ours only while the
process with that pid carries that mark in its environment: a pid that was given to someone else, or a port that a
stranger answers on, is never used and never signalled. The mark says more than a start time would, which shifts when
the clock is set.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.launch.processes import MARK, find_marked, is_alive, kill_marked, marked_env, uninterrupted
from infra.settings import state_folder

# A shell gives what it starts with `&` SIGINT ignored, and so on to all children; a worker that inherits that
# swallows its first signal and goes on taking runs.
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
        mark: what the process and all its descendants carry in their environment.
        url: address of the Prefect API that it serves or works for.
    """

    name: str
    pid: int
    mark: str
    url: str

    @property
    def log(self) -> Path:
        """What it printed since it was started."""
        return state_folder() / f"{self.name}.log"

    def is_running(self) -> bool:
        """Whether the process runs and is ours."""
        return self.pid in find_marked(self.mark)

    def last_words(self) -> str:
        """The last line of its log, or ''."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def stop(self, grace_s: float) -> bool:
        """End it and all its descendants, politely for `grace_s` seconds; False if it did not run any more."""
        running = self.is_running()
        if running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while is_alive(self.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
        # Also when it ended by itself: what it had started may still be there.
        return bool(kill_marked(self.mark)) or running


def read(name: str) -> Service | None:
    """The service that the state file names, running or not; None without a readable file."""
    try:
        return Service(name, **json.loads((state_folder() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def running(name: str) -> Service | None:
    """The service, if it runs and is ours."""
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
        wait: returns once it is ready; whatever is raised in here, a signal's exception included, ends it again.
        inherit: file descriptors that it takes over.
    """
    folder = state_folder()
    log = folder / f"{name}.log"
    if log.exists():
        log.replace(folder / f"{name}.previous.log")
    try:
        with log.open("wb") as output:
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
        draft = folder / f"{name}.{os.getpid()}.draft"
        draft.write_text(json.dumps(fields))
        draft.replace(folder / f"{name}.json")
        wait(service)
    except BaseException:
        with uninterrupted():
            kill_marked(mark)
        raise
    return service


def environment(mark: str) -> dict[str, str]:
    """This process' environment for a service: with `mark` alone, whatever marks this process carries itself.

    A service outlives the run that happened to start it, so it must not be found as that run's descendant.
    """
    return {**marked_env(mark), MARK: mark}


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold this state folder's lock: of two that start a service at once, one starts it and the other finds it."""
    with (state_folder() / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
