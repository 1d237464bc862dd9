"""Where torchrun starts a rank: `python -m infra.launch.entry MODULE`. Ties it to its agent, keeps its log, runs it.

torchrun gives each rank a session of its own, so a killed agent would leave it training; here the kernel is asked to
end it. Whatever gets past the module's own error handling is answered as an internal error, never as silence.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from data_contracts.errors import Preempted, TrainwrightError
from infra.launch.child import write_atomically
from infra.launch.processes import die_with_parent
from infra.launch.ranks import SCRATCH, error_file, log_file, pid_file
from infra.launch.stacks import answer_with_stacks


def main() -> None:
    """Become the rank that RANK names: log and pid under TRAINWRIGHT_SCRATCH, then the module as `__main__`."""
    die_with_parent()
    scratch, rank = Path(os.environ[SCRATCH]), int(os.environ["RANK"])
    log = os.open(log_file(scratch, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    answer_with_stacks()
    # Until the module listens itself: before the first step there is nothing to keep.
    signal.signal(signal.SIGTERM, lambda *_: _leave(scratch, rank))
    write_atomically(pid_file(scratch, rank), {"rank": rank, "pid": os.getpid()})
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        traceback.print_exc()
        answer = error_file(scratch, rank)
        if not answer.exists():
            internal = TrainwrightError(f"Rank {rank} failed: {type(error).__name__}: {error}.", details={"rank": rank})
            write_atomically(answer, internal.to_json())
        sys.exit(TrainwrightError.exit_code)


def _leave(scratch: Path, rank: int) -> None:
    error = Preempted(f"Rank {rank} was asked to stop before its first step.", details={"rank": rank})
    write_atomically(error_file(scratch, rank), error.to_json())
    os._exit(error.exit_code)


if __name__ == "__main__":
    main()
