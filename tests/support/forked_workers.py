"""Forks pytest-xdist's workers from one process that has imported the test files, in place of five that import them.

The imports are torch, Lightning, Great Expectations, Prefect, our own modules and 600 test files: 8 s of processor time
in each worker. A worker collects its tests itself, as always: only the modules are there already. What cannot be
imported fails in the workers, which try again. For a worker that replaces one that crashed, xdist starts a process.

`python -u -m tests.support.forked_workers FOLDER STDIN,STDOUT;… ARGUMENT…` forks a worker for each pair of files.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support.warm_children import carry_out, forget_the_end_of_imports

ROOT = Path(__file__).resolve().parents[2]


class _Importing:
    """Lets pytest import files without making their tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[Any]:
        return []


class _Worker(Popen2IO):
    """What execnet asks of a process that it started."""

    def __init__(self, parent: subprocess.Popen[bytes], stdin: int, stdout: int, execmodel: Any) -> None:
        self.parent = parent
        super().__init__(os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), execmodel)

    def wait(self) -> int:
        """Wait for all workers, which end together."""
        return self.parent.wait()

    def kill(self) -> None:
        """End the workers, as they do by themselves when nobody reads what they write."""
        self.parent.terminate()


def fork_workers(config: pytest.Config) -> None:
    """Have the workers forked that this process is about to ask for."""
    count = len(config.option.tx)  # xdist's own list by now, of `popen` as many times as there are workers
    to_workers, from_workers = [os.pipe() for _ in range(count)], [os.pipe() for _ in range(count)]
    theirs = [(stdin, stdout) for (stdin, _), (_, stdout) in zip(to_workers, from_workers, strict=True)]
    ours = [(stdin, stdout) for (_, stdin), (stdout, _) in zip(to_workers, from_workers, strict=True)]
    numbers = [number for pair in theirs for number in pair]
    pairs = ";".join(f"{stdin},{stdout}" for stdin, stdout in theirs)
    arguments = [str(config.invocation_params.dir), pairs, *map(str, config.invocation_params.args)]
    parent = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.support.forked_workers", *arguments], cwd=ROOT, pass_fds=numbers
    )
    for number in numbers:
        os.close(number)
    started = gateway_io.create_io

    def create_io(spec: Any, execmodel: Any) -> Any:
        if not spec.popen or not ours:
            return started(spec, execmodel)
        return _Worker(parent, *ours.pop(0), execmodel)

    gateway_io.create_io = create_io
    config.add_cleanup(lambda: setattr(gateway_io, "create_io", started))


def _import_tests(arguments: Sequence[str]) -> None:
    """Import what these arguments of pytest's name, without a word."""
    streams = [os.dup(number) for number in (1, 2)]
    with open(os.devnull, "wb") as nothing:
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    only = ["--numprocesses=0", "--dist=no", "--collect-only", "-qq", "--capture=no", "-p", "no:cacheprovider"]
    pytest.main([*arguments, *only], [_Importing()])
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)


def _become_worker(stdin: int, stdout: int, streams: Sequence[int]) -> None:
    """What `python -c` is with execnet's first line, which it reads from its stdin."""
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    for number in streams:  # a worker ends when nobody is left who writes to it
        os.close(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(os.urandom(4), "big"))
    sys.argv[:] = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")  # multiprocessing's children would import this one
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - open until the process ends
    exec(eval(sys.stdin.readline()), sys.modules["__main__"].__dict__)


def main(folder: str, pairs: str, *arguments: str) -> None:
    """Import the tests, fork the workers and wait for their end."""
    os.chdir(folder)
    _import_tests(arguments)
    forget_the_end_of_imports()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a fork has none of the threads that imports started"
    # Python 3.12 warns of any thread, also of one that a library's compiled code keeps.
    warnings.simplefilter("ignore", DeprecationWarning)
    workers = []
    streams = [int(number) for pair in pairs.split(";") for number in pair.split(",")]
    for stdin, stdout in zip(streams[::2], streams[1::2], strict=True):
        if (pid := os.fork()) == 0:
            carry_out(functools.partial(_become_worker, stdin, stdout, streams))
        workers.append(pid)
    for number in streams:
        os.close(number)

    def end(*_: object) -> None:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)  # as execnet ends a process; none was waited for

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for pid in workers:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for pid in workers:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
