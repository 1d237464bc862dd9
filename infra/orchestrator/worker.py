"""A worker of a process pool, in the foreground: `python -m infra.orchestrator.worker POOL`, or `trainwright worker`.

Prefect's own worker answers SIGTERM by killing its flow runs, which then count as crashed. This process runs that
worker as its child. When it is stopped, it hands the flow runs over: they save a checkpoint, end, and are given to a
worker again. Without POOL, it does the same for the flow run that its environment names, as the first process of a pod:
Prefect's own would give the run away without a checkpoint.
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from data_contracts.errors import StorageUnavailable
from infra import scratch
from infra.orchestrator.flow_runs.handing_over import give_again
from infra.orchestrator.flow_runs.worker_flow_runs import runs_of
from infra.orchestrator.work_pools import PROCESS
from infra.processes.processes import find_marked, kill_marked, marked_env, module_command, new_mark
from infra.stopping import STOP_FILE
from infra.telemetry import prefect_env

# A checkpoint has 30 s (`Launch.grace_s`), and is committed after that. The unit's TimeoutStopSec is longer.
GRACE_S = 75.0
POLL_S = 0.2
# Between two starts of a worker that ended by itself: Prefect's does so when its server is away for minutes.
AGAIN_S = 5.0

log = logging.getLogger("trainwright")


def work(pool: str | None, options: Sequence[str] = ()) -> list[str]:
    """Execute the pool's flow runs until SIGTERM or SIGINT, then hand them over; ids of those that were handed over.

    Args:
        pool: None: only the flow run that this process's environment names; SystemExit with its exit code at its end.
        options: further options of `prefect worker start`.
    """
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    mark = new_mark()
    with scratch.make("worker", mark=mark) as folder:
        stop_file = folder.path / "stop"
        environ = _environment(mark, stop_file)
        worker = _start(pool, options, environ, folder.handles)
        try:
            while not stopped.wait(POLL_S):
                if worker.poll() is not None:
                    if pool is None:
                        raise SystemExit(worker.returncode)
                    log.warning("Prefect's worker ended with exit code %d and is started again.", worker.returncode)
                    stopped.wait(AGAIN_S)
                    worker = _start(pool, options, environ, folder.handles)
            # It takes no more flow runs, and does not end those that it has.
            worker.send_signal(signal.SIGSTOP)
            flow_runs = runs_of(mark)
            stop_file.touch()
            deadline = time.monotonic() + GRACE_S
            while set(find_marked(mark)) - {worker.pid} and time.monotonic() < deadline:
                time.sleep(POLL_S)
        finally:
            kill_marked(mark)
            worker.wait()
    try:
        give_again(sorted(flow_runs))
    except StorageUnavailable as error:
        log.warning("Flow runs that did not end in time are left to the reaper: %s", error)
    return sorted(map(str, flow_runs))


def _environment(mark: str, stop_file: Path) -> dict[str, str]:
    # Flow runs find this environment's programs (dvc, torchrun) even if the environment is not activated.
    paths = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    own = {
        "PATH": os.pathsep.join(paths),
        STOP_FILE: str(stop_file),
        # The server calls a worker dead after three of these.
        "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
        **prefect_env(),
    }
    return marked_env(mark, own)


def _start(
    pool: str | None, options: Sequence[str], environ: dict[str, str], handles: Sequence[int]
) -> subprocess.Popen[bytes]:
    worker = ["worker", "start", "--type", PROCESS, "--pool", str(pool), "--name", platform.node() or "local", *options]
    work = worker if pool is not None else ["flow-run", "execute"]
    # It has the server's password, so nothing in the folder where it is started may take the place of a module. If this
    # process is killed, Prefect's worker must not go on to take flow runs that nobody can hand over.
    command = module_command("infra.processes.tied_to_parent", "prefect", *work)
    return subprocess.Popen(command, env=environ, start_new_session=True, pass_fds=handles)


def main() -> None:
    """Work for the pool that the command line names; without one, execute a pod's flow run."""
    work(sys.argv[1] if sys.argv[1:] else None)


if __name__ == "__main__":
    main()
