"""Start a rank under torchrun: tie it to its agent, keep its log, and run its module.

Run as `python -m infra.gang.rank_bootstrap MODULE`.

torchrun gives each rank a session of its own, so the rank would outlive a killed agent; here the kernel is asked to end
it. An exception that gets past the module's own error handling is answered as an internal error.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from data_contracts.errors import Preempted, TrainwrightError
from data_contracts.quoting import LOG, type_and_text
from infra.gang.rank_files import SCRATCH, RankFiles
from infra.gang.ranks import answer_with_stacks
from infra.processes.environment import rank_log
from infra.processes.processes import die_with_parent
from infra.telemetry import TRACEPARENT, begin_json_logs, current


def main() -> None:
    """Become the rank that RANK names: log and pid under TRAINWRIGHT_SCRATCH, then the module as `__main__`."""
    die_with_parent()
    rank = RankFiles(Path(os.environ[SCRATCH]), int(os.environ["RANK"]))
    if node_log := os.environ.get(LOG):
        withheld = rank_log(Path(node_log), rank.rank)
        rank.log.symlink_to(withheld)
        os.environ[LOG] = str(withheld)
    log = os.open(rank.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if (node := current()) is not None:
        os.environ[TRACEPARENT] = str(node.child("rank", rank.rank))
    begin_json_logs(rank=rank.rank)
    answer_with_stacks(rank.stack if node_log else None)
    # Until the module installs its own handler: before the first step there is nothing to save.
    signal.signal(signal.SIGTERM, lambda *_: _leave(rank))
    rank.write_process(os.getpid())
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:
        traceback.print_exc()
        sentence = f"Rank {rank.rank} failed: {type_and_text(error)}."
        rank.write_error(TrainwrightError(sentence, details={"rank": rank.rank}))
        sys.exit(TrainwrightError.exit_code)


def _leave(rank: RankFiles) -> None:
    error = Preempted(f"Rank {rank.rank} was asked to stop before its first step.", details={"rank": rank.rank})
    rank.write_error(error)
    os._exit(error.exit_code)


if __name__ == "__main__":
    main()
