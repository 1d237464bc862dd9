"""Processes of tests forked from a process that has imported what they import: 1 to 4 s of a processor less for each.

`python -P -u -m MODULE …`, as the code starts its processes, still starts a process, with its own pid, parent, session,
streams and environment. While Python starts there, `site/sitecustomize.py` asks a warm process to carry MODULE out in a
fork, and stands between: it passes signals and the exit code on, and takes the fork with it when it is killed. The fork
has the environment and the command line of the process that it stands for, in /proc, too, where the code looks for
marks. Where the environment holds something that is read on import, or another interpreter was meant, Python starts as
usual, and also where it has other limits, capabilities or namespaces.

Children, supervisors and ranks are forked in tests that have the marker `warm`, and torchrun of `tests.support.gang`
always is. The marker is not for tests that stop a process by its pid (SIGSTOP), measure its memory or look at what it
imports. Commands (`tests.support.tiny.trainwright`) are forked from a second warm process, and where `warm_prefect` was
asked for, so are Prefect's server, its workers, what these start for a flow run, and Dask's schedulers and workers.

`python -P -u -m tests.support.speed.children KIND PADDING SOCKET` serves until its stdin ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.speed import server
from tests.support.speed.huge_pages import collapse
from tests.support.speed.prefect_modules import RUN, import_commands

ROOT = Path(__file__).resolve().parents[3]
SITE = Path(__file__).parent / "site"
# The names of the variables are those of `site/sitecustomize.py`.
ADDRESS = "WARM_CHILDREN"
PREFECT = "WARM_PREFECT"
COMMANDS = "WARM_COMMANDS"
PADDING = "WARM_PADDING"
ROOM_BYTES = 60_000
# Read when Python starts, or on the import of what the warm process has imported.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NUMBA_", "ARROW_", "MALLOC_")
READ_AT_START += ("TORCH_LOGS", "TORCH_COMPILE", "PYTORCH_", "GX_", "DO_NOT_TRACK")
# Prefect's server reads some when it is imported.
READ_AT_START += ("AIOHTTP_", "DASK_", "FSSPEC_", "S3FS_")
READ_AT_START += ("PREFECT_SERVER_SERVICES", "PREFECT_API_SERVICES", "PREFECT_SERVER_EVENTS", "PREFECT_API_EVENTS")
READ_AT_START += ("PREFECT_EVENTS", "PREFECT_TASK_SCHEDULING", "PREFECT_TEST", "PREFECT_UNIT_TEST")
_SEPARATELY = {"PYTHONPATH", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"}
# What every rank imports before the user's code and when Lightning makes a checkpoint; what supervisors and other
# children import.
IMPORTS = (
    *("omegaconf", "training.checkpoint", "training.lightning_adapter", "training.loader", "training.user.ready"),
    *("training.fit.failures", "training.fit.loop", "training.fit.measuring", "training.fit.supervisor"),
    *("training.score.evaluate_worker", "training.score.verify_worker"),
    *("infra.gang.rank_bootstrap", "infra.gang.supervisor", "infra.processes.tied_to_parent"),
    *("torch.distributed.run", "training.fit.torchrun_agent", "training.shard.worker", "great_expectations"),
)


def import_path() -> str:
    """PYTHONPATH of this test's processes: with the folder that lets them be forked, if they may be."""
    return os.pathsep.join([str(ROOT), *([str(SITE)] if {ADDRESS, PREFECT} & os.environ.keys() else [])])


def of_copy(root: Path) -> dict[str, str]:
    """The environment of processes whose sources, and these tests, are a copy: it has warm processes of its own."""
    addresses = {name: _server(name, root) for name in (ADDRESS, PREFECT)}
    return {**addresses, "PYTHONPATH": os.pathsep.join([str(root), str(root / SITE.relative_to(ROOT))])}


@contextlib.contextmanager
def warm_children() -> Iterator[None]:
    """The processes that this one starts, and theirs, are forked from a warm one where they can be."""
    before = {name: os.environ.get(name) for name in (ADDRESS, "PYTHONPATH")}
    os.environ[ADDRESS] = _server(ADDRESS)
    os.environ["PYTHONPATH"] = import_path()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def warm_prefect() -> Iterator[None]:
    """Prefect's servers, workers and flow runs are forked from a warm process where `import_path` leads them to it."""
    before = os.environ.get(PREFECT)
    os.environ[PREFECT] = _server(PREFECT)
    try:
        yield
    finally:
        os.environ.pop(PREFECT, None) if before is None else os.environ.update({PREFECT: before})


@contextlib.contextmanager
def nothing_warm() -> Iterator[None]:
    """Each process that this one starts is a new one."""
    before = {name: os.environ.pop(name) for name in (ADDRESS, PREFECT) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def for_ranks() -> dict[str, str]:
    """The environment of processes that are forked from a warm one, whatever the test's own are."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SITE)]), ADDRESS: _server(ADDRESS)}


def for_command(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a command that may be forked from a warm process, unless it has an import path of its own."""
    if environment["PYTHONPATH"] != import_path():
        return environment
    return {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(SITE)]), COMMANDS: _server(PREFECT)}


def _server(name: str, root: Path = ROOT) -> str:
    padding = "x" * ROOM_BYTES
    environment = {**os.environ, "PYTHONPATH": str(root), PADDING: padding, "OMP_NUM_THREADS": "1"}
    for variable in (ADDRESS, PREFECT, COMMANDS):
        environment.pop(variable, None)
    arguments = ["-P", "-u", "-m", "tests.support.speed.children", name, padding]
    unique = name if root == ROOT else f"{name}-{zlib.crc32(os.fsencode(root))}"
    return server.address(unique, arguments, environment, root)


class _Server:
    """Forks what is asked for, and tells each one's end; a fork whose process is gone is killed."""

    def __init__(self, address: str, at_start: dict[str, str], set_by_imports: dict[str, str]) -> None:
        self.at_start, self.set_by_imports = at_start, set_by_imports
        self.places = _places()
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(address)
        self.listener.listen(64)
        self.selector.register(self.listener, selectors.EVENT_READ, ("listener", None))
        self.selector.register(sys.stdin, selectors.EVENT_READ, ("stdin", None))

    def serve(self) -> dict[str, Any] | None:
        """None at the end; in a fork, what it is to become."""
        while True:
            for key, _ in self.selector.select():
                kind, of = key.data
                if kind == "stdin":
                    return None
                if kind == "listener":
                    if (request := self._begin()) is not None:
                        return request
                elif kind == "ended":
                    self._ended(*of)
                elif kind == "left" and of[2].fileno() != -1:  # it may have ended just before
                    self._left(*of)

    def _begin(self) -> dict[str, Any] | None:
        channel, _ = self.listener.accept()
        asking, _, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            _, received, _, _ = socket.recv_fds(channel, 1, 64)
            request: dict[str, Any] = json.loads(channel.makefile("r").readline())
        except (OSError, ValueError):
            channel.close()
            return None
        if not self._can_fork(request) or _circumstances(asking) != _circumstances(os.getpid()):
            _answer(channel, "no")
        elif (pid := os.fork()) == 0:
            self.selector.close()
            self.listener.close()
            channel.close()
            return {**request, "received": received, "places": self.places}
        else:
            _answer(channel, str(pid))
            ended = os.pidfd_open(pid)
            one = (pid, ended, channel)
            self.selector.register(ended, selectors.EVENT_READ, ("ended", one))
            self.selector.register(channel, selectors.EVENT_READ, ("left", one))
            channel = socket.socket()  # that of the fork stays open
        channel.close()
        for number in received:
            os.close(number)
        return None

    def _can_fork(self, request: dict[str, Any]) -> bool:
        environment = request["environment"]
        read = {name for name in {*environment, *self.at_start} if name.startswith(READ_AT_START)} - _SEPARATELY
        others = set(environment.get("PYTHONPATH", "").split(os.pathsep)) - {str(ROOT), str(SITE)}
        needs = [len(_zeroed(f"{name}={value}" for name, value in environment.items())), len(_zeroed(request["line"]))]
        return (
            request["executable"] == sys.executable
            and all(map(_is_empty, others))
            and all(environment.get(name) in (self.at_start.get(name), self.set_by_imports.get(name)) for name in read)
            and all(need < end - start for need, (start, end) in zip(needs, self.places, strict=True))
        )

    def _ended(self, pid: int, ended: int, channel: socket.socket) -> None:
        _, status = os.waitpid(pid, 0)
        self.selector.unregister(ended)
        os.close(ended)
        if channel in self.selector.get_map():
            self.selector.unregister(channel)
            _answer(channel, str(os.waitstatus_to_exitcode(status)))
        channel.close()

    def _left(self, pid: int, ended: int, channel: socket.socket) -> None:
        self.selector.unregister(channel)
        os.kill(pid, signal.SIGKILL)  # its end is noticed as another's is


def _answer(channel: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # who asked was killed meanwhile; then `_left` comes
        channel.sendall(f"{line}\n".encode())


def _circumstances(pid: int) -> object:
    """What a process has from its parent, beside its environment and files; it says nothing of who the parent is."""
    proc = Path(f"/proc/{pid}")
    try:
        lines = (proc / "status").read_text().splitlines()
        namespaces = [os.readlink(proc / "ns" / kind) for kind in ("mnt", "net", "pid")]
        status = [line for line in lines if line.startswith(("Uid", "Gid", "Cap", "NoNew"))]
        return status, (proc / "limits").read_text(), namespaces
    except OSError:
        return pid  # it is gone, or not ours


def _is_empty(folder: str) -> bool:
    """Whether it is a folder from which nothing can be imported, as that of a flow run is when a worker starts it."""
    return os.path.isdir(folder) and not list(Path(folder).glob("*"))


def _places() -> list[tuple[int, int]]:
    """Where in memory the kernel looks for this process's environment and command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, environment = (int(fields[45]), int(fields[46])), (int(fields[47]), int(fields[48]))
    return [environment, arguments]


def _name() -> str:
    return Path("/proc/self/comm").read_text().strip()


def _zeroed(texts: Any) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def _become(request: dict[str, Any], set_by_imports: dict[str, str]) -> None:
    os.setsid()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    _take(request["received"], request["numbers"])
    environment = request["environment"]
    os.environ.clear()
    os.environ.update({**set_by_imports, **environment})
    shown = [_zeroed(f"{name}={value}" for name, value in environment.items()), _zeroed(request["line"])]
    for text, (start, end) in zip(shown, request["places"], strict=True):
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))
    time.tzset()
    tempfile.tempdir = None
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.__stdout__ = open(1, "w", 1, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interruptible"] else signal.SIG_IGN)
    parent = request["parent"]
    os.getppid = lambda: parent
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(int.from_bytes(os.urandom(4), "big"))
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    paths = [*([] if "-P" in request["line"][:3] else [os.getcwd()]), *environment["PYTHONPATH"].split(os.pathsep)]
    sys.path[:] = [*paths, *(folder for folder in sys.path if folder not in (str(ROOT), str(SITE)))]
    command = request["command"]
    sys.orig_argv[:] = request["line"]
    sys.argv = command
    for module in command:  # as in a process that has not imported what it is to run
        if module in RUN and sys.modules.pop(module, None):
            package, _, own = module.rpartition(".")
            vars(sys.modules[package]).pop(own, None)  # where `from PACKAGE import MODULE` would find it
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def carry_out(work: Callable[[], None]) -> NoReturn:
    """Do the work and end as Python does, without taking apart what was imported.

    That takes 2 s in a fork, most of it for copied pages.
    """
    code: object = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


def _take(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Give the files that came with a request the numbers that they had in the process that asked."""
    high = [os.dup2(number, 500 + place, inheritable=False) for place, number in enumerate(received)]
    for name in os.listdir("/proc/self/fd"):
        if int(name) < 500:
            with contextlib.suppress(OSError):
                os.close(int(name))
    for source, number in zip(high, numbers, strict=True):
        os.dup2(source, number, inheritable=True)
        os.close(source)


def forget_the_end_of_imports() -> None:
    """Leave out at a fork's end what imports registered for it: 65 ms, most of them for copied pages.

    What is registered in the fork itself, such as the removal of a temporary folder, is carried out.
    """
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        atexit.unregister(dynamo.dump_compile_times)
    for registered in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        registered.atexit = False


def _serve(kind: str, address: str) -> None:
    at_start = dict(os.environ)
    held = None
    if kind == PREFECT:
        held = import_commands()
    else:
        for name in IMPORTS:
            importlib.import_module(name)
    threads = {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")} - {_name()}
    # jemalloc begins its thread anew after a fork.
    assert threads <= {"jemalloc_bg_thd"}, f"a fork has none of the threads that imports started: {threads}"
    set_by_imports = {name: value for name, value in os.environ.items() if name not in at_start}
    forget_the_end_of_imports()
    gc.collect()
    gc.freeze()
    collapse()
    server = _Server(address, at_start, set_by_imports)
    print("ready", flush=True)
    request = server.serve()
    if request is not None:
        if held is not None:
            sys.meta_path.insert(0, held)
        carry_out(lambda: _become(request, set_by_imports))
    else:
        Path(address).unlink(missing_ok=True)


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[3])
