"""A process of a test's own, to be stopped and killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

from infra.processes import processes
from infra.processes.processes import ProcessId

SLEEP = "import time; print(flush=True); time.sleep(600)"


@contextlib.contextmanager
def a_process(code: str = SLEEP) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed a line; killed and waited for at the end."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def identified(process: subprocess.Popen[bytes]) -> ProcessId:
    """The process as it would identify itself."""
    place, fields = processes._place(), processes.stat_fields(process.pid)
    assert place is not None, "this test needs /proc"
    return ProcessId(place, process.pid, int(fields[processes.STARTED]))


def foreground() -> None:
    """Let this process have signals as in the foreground: one in the background inherits that they are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
