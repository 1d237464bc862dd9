"""Commands forked from a process that has imported what commands import: 0.8 to 2.7 s of processor time less for each.

The command is a process with its own pid, streams, folder and environment, and `flows.cli` runs in it as `__main__`.
Only Python's start and the imports are shared, so nothing here may import Great Expectations or torch, which look at
the environment when they are imported. Prefect does so, too, but can do it again: its modules are put aside
(`HeldModules`), and the first import of Prefect in a command takes them back and reads the settings of that moment.
`python -m tests.support.warm_cli SOCKET` serves until stdin ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support import warm_children, warm_server
from tests.support.huge_pages import collapse

ROOT = Path(__file__).resolve().parents[2]
# Read when the interpreter starts, or on the import of what is imported already.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "OPENBLAS_", "NUMBA_", "ARROW_", "MALLOC_")
READ_AT_START += ("AIOHTTP_", "FSSPEC_", "S3FS_")
# What commands import when they need it, and what does not look at the environment.
OTHERS = ("email_validator", "fastapi.encoders", "graphviz", "h2", "httpcore", "humanize", "pandas", "pathspec")
OTHERS += ("pyarrow.csv", "pyarrow.parquet", "s3fs", "scipy.special")
# The modules of Prefect that a run imports, but for `prefect.main`, which makes the handlers of its logs.
OF_PREFECT = (
    *("prefect.artifacts", "prefect.client.cloud", "prefect.concurrency.sync", "prefect.events", "prefect.flow_engine"),
    *("prefect.flow_runs", "prefect.input", "prefect.runtime", "prefect.task_engine", "prefect.variables"),
)
# Processor time of the commands that ended, which are not children of this process: see `tests.support.costs`.
spent_s = [0.0]


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a fork behaves as a new process in that environment would."""
    read = {name for name in {*environment, *os.environ} if name.startswith(READ_AT_START)} - {"PYTHONPATH"}
    return environment.get("PYTHONPATH") == warm_children.import_path() and all(
        environment.get(n) == os.environ.get(n) for n in read
    )


def run(
    arguments: Sequence[str], cwd: Path | None, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Carry out a command and wait for it, as `subprocess.run(capture_output=True, text=True)` does."""
    request: dict[str, Any] = {
        "arguments": list(arguments),
        "cwd": str(cwd or Path.cwd()),
        "environment": dict(environment),
    }
    request["umask"] = int(Path("/proc/self/status").read_text().partition("Umask:")[2].split()[0], 8)
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        channel.connect(_server())
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        socket.send_fds(channel, [b"r"], [file.fileno() for file in outputs])
        channel.sendall(json.dumps(request).encode() + b"\n")
        answers = stack.enter_context(channel.makefile("r"))
        pid = int(answers.readline())
        channel.settimeout(timeout_s)
        try:
            returncode, processor_s = answers.readline().split()
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None
        spent_s[0] += float(processor_s)
        texts = []
        for file in outputs:
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(["trainwright", *arguments], int(returncode), *texts)


def _server() -> str:
    """The address of the process that forks commands, which is started when it is first asked for."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WARM_")}
    return warm_server.address("commands", ["-m", "tests.support.warm_cli"], environment)


class HeldModules(MetaPathFinder, Loader):
    """Prefect's modules, imported and put aside until a command imports Prefect."""

    def __init__(self, names: Sequence[str] = OF_PREFECT) -> None:
        """Import them, and leave it as if they had not been: no module is there, and no log has a handler."""
        logs: Any = importlib.import_module("prefect.logging.configuration")
        set_up, logs.setup_logging = logs.setup_logging, dict
        for name in names:
            importlib.import_module(name)
        logs.setup_logging = set_up
        del sys.modules["prefect"].main, sys.modules["prefect.main"]  # type: ignore[attr-defined]
        for name in warm_children.RUN:  # a process that runs one has not imported it
            sys.modules.pop(name, None)
        names = [name for name in sys.modules if name.partition(".")[0] == "prefect"]
        self._modules: dict[str, Any] = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules["prefect"].__spec__

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """A spec of Prefect itself, once its parts are back where imports look for them."""
        if fullname != "prefect":
            return None
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)
        context = self._modules["prefect.context"]
        del context.GLOBAL_SETTINGS_CONTEXT  # of another home, and so of other profiles
        context.refresh_global_settings_context()
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: ModuleType = self._modules["prefect"]
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def import_commands(of_prefect: Sequence[str] = ()) -> HeldModules:
    """Import what commands import; Prefect's modules, and these of Prefect, are put aside."""
    import flows.commands

    for module in pkgutil.iter_modules(flows.commands.__path__, "flows.commands."):
        importlib.import_module(module.name)
    for name in OTHERS:
        importlib.import_module(name)
    held = HeldModules([*OF_PREFECT, *of_prefect])
    bad = {"prefect", "great_expectations", "torch"} & sys.modules.keys()
    assert not bad, f"{bad} would look at the environment of another command"
    assert threading.active_count() == 1, "a fork has none of the threads that imports started"
    return held


def _serve(address: str) -> None:
    held = import_commands()
    gc.collect()
    gc.freeze()
    collapse()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what it forks
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                break
            channel, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _watch(channel, held)
            channel.close()
    Path(address).unlink(missing_ok=True)


def _watch(channel: socket.socket, held: HeldModules) -> None:
    """Fork the command, and tell its pid and then its exit code; the command itself returns from here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, outputs, _, _ = socket.recv_fds(channel, 1, 2)
    request = json.loads(channel.makefile("r").readline())
    pid = os.fork()
    if pid == 0:
        channel.close()
        sys.meta_path.insert(0, held)
        warm_children.carry_out(lambda: _become(request, outputs))
    channel.sendall(f"{pid}\n".encode())
    _, status, used = os.wait4(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        channel.sendall(f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime}\n".encode())
    os._exit(0)


def _become(request: dict[str, Any], outputs: Sequence[int]) -> None:
    with open(os.devnull) as nothing:
        for number, source in enumerate([nothing.fileno(), *outputs]):
            os.dup2(source, number)
    for source in outputs:
        os.close(source)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    tempfile.tempdir = None
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    here = str(ROOT)
    sys.path[:] = [request["cwd"], here, *(folder for folder in sys.path if folder not in ("", here))]
    sys.argv = ["flows.cli", *request["arguments"]]
    random.seed()
    runpy.run_module("flows.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
