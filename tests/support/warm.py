"""Ranks forked from a process that has imported torch and Lightning: imports are most of what a rank's start costs.

torchrun, the rank's entry and its module are the real ones; only the two `exec`s between them are replaced by forks.
Each process that runs tests has one such warm process, started on first use, which never runs a user's code.
"""

from __future__ import annotations

import multiprocessing as mp
import multiprocessing.forkserver as forkserver
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTS = "tests.support.warm_imports"


def torchrun(module: str, ranks: int, environment: Mapping[str, str], log: Path, cwd: Path) -> Started:
    """Start torchrun in a session of its own, for `ranks` ranks that run `module`; it prints to `log`.

    Args:
        environment: the whole environment of torchrun. What libraries read on import, such as OMP_NUM_THREADS, is that
            of the warm process: one thread.
    """
    return start(_agent, (module, ranks), environment, log, cwd)


def start(
    work: Callable[..., object], arguments: Sequence[Any], environment: Mapping[str, str], log: Path, cwd: Path
) -> Started:
    """Start a process that does `work` in a session of its own, as for `torchrun`."""
    context = mp.get_context("forkserver")
    _end_foreign_server()
    context.set_forkserver_preload([IMPORTS])
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=str(REPOSITORY), OMP_NUM_THREADS="1")
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    _warm.add(_server_pid())
    process = context.Process(target=_alone, args=(work, arguments, dict(environment), str(log), str(cwd)))
    process.start()
    return Started(process)


# The fork server that has imported what a rank needs.
_warm: set[int | None] = set()


def _end_foreign_server() -> None:
    """End a fork server that a test of something else has started in this process: it has imported nothing."""
    if (pid := _server_pid()) is not None and pid not in _warm:
        forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _server_pid() -> int | None:
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


class Started:
    """What tests use of a Popen, for a process of the fork server."""

    def __init__(self, process: mp.process.BaseProcess) -> None:
        assert process.pid is not None
        self._process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative if a signal ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit code; TimeoutExpired if it takes longer than `timeout` seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("torchrun", timeout or 0)
        return self.returncode

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


class _Forked:
    """What torchrun uses of a Popen, for a fork of its own process that does some work."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work()
            finally:
                os._exit(1)  # a rank's module ends by itself with its own code

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.01)
        return code


def _alone(
    work: Callable[..., object], arguments: Sequence[Any], environment: dict[str, str], log: str, cwd: str
) -> None:
    os.setsid()
    os.chdir(cwd)
    _become(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    assert "lightning.pytorch" in sys.modules, "the fork server imported nothing"
    work(*arguments)


def _agent(module: str, ranks: int) -> None:
    import torch.distributed.run
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    SubprocessHandler._popen = lambda _, command, env: _Forked(lambda: _rank(command, env))  # type: ignore[assignment,method-assign,return-value]
    torch.distributed.run.main(["--standalone", f"--nproc-per-node={ranks}", "--no-python", module])


def _rank(command: tuple[str, ...], environment: dict[str, str]) -> None:
    from infra.gang import rank_bootstrap

    os.setsid()
    _become(environment)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = ["rank_bootstrap", *command]
    rank_bootstrap.main()


def _become(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [folder for folder in sys.path if folder]  # not the working directory, as under `python -P`
