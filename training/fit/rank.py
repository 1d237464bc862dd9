"""One rank of a gang: `python -m training.fit.rank`, started by torchrun with its settings in the environment.

It trains (`training.fit.assembly`, which needs torch) once the environment is set, and writes its result to the scratch
folder: `rank-<r>.done.json`, or `rank-<r>.error.json` with the cause. The cause decides its exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from data_contracts.errors import TrainwrightError
from data_contracts.quoting import type_and_text
from infra.gang.rank_files import SCRATCH, RankFiles
from training.fit.launch_context import Context, MakeCallbacks, read_context
from training.fit.reports import Reports


def main(extra: MakeCallbacks | None = None) -> int:
    """Train this rank's part and return the exit code."""
    try:
        context = read_context()
    except Exception as error:
        return _unread(error)
    reports = Reports(context.scratch, context.rank, context.heartbeat_s)
    reports.report(now=True)
    reports.pulse()
    prepare(context)
    try:
        from training.fit.assembly import train

        checkpoint, summary = train(context, reports, extra)
    except BaseException as error:
        traceback.print_exc()
        from training.fit.failures import report_failure

        return report_failure(error, context, reports).exit_code
    reports.done(checkpoint, summary)
    return 0


def _unread(error: Exception) -> int:
    """Report that this rank could not read its settings. Only the environment says where to report."""
    traceback.print_exc()
    if not isinstance(error, TrainwrightError):
        error = TrainwrightError(f"The launch file cannot be read: {type_and_text(error)}.")
    RankFiles(Path(os.environ[SCRATCH]), int(os.environ["RANK"])).write_error(error)
    return error.exit_code


def prepare(context: Context) -> None:
    """Set the variables that must be in the environment before torch is imported, if the launcher did not."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // context.local_world_size)))
    # gloo binds to the address of the host's name, which may not be reachable, not even from the host itself.
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def end(code: int) -> None:
    """End this process with an exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread of the user's or a collective that waits for a dead rank would block it.
    os._exit(code)


if __name__ == "__main__":
    end(main())
