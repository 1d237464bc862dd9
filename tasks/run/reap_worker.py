"""The child process in which the reaper reads the records of a store, which others may have written.

Run as `python -m tasks.run.reap_worker REQUEST ANSWER` by `infra.child`. A record that ends it or fills its memory ends
neither the reaper nor what waits for it.
"""

from __future__ import annotations

from itertools import count

from data_contracts.messages.children import Advanced
from data_contracts.messages.commands import REAP, ReapRequest, RunBegun, RunReaped, StoreReaped
from infra.orchestrator.resuming import PrefectResumer
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from tasks.run.executions import reap


def main(request: ReapRequest, report: Report) -> StoreReaped:
    """Look at the store that a request names; reports each run before and after it."""
    done = count(1)

    def begin(run_id: str) -> None:
        report(Advanced(done=next(done)))
        report(RunBegun(run_id=run_id))

    reap(
        open_at(request.store),
        PrefectResumer(request.pool, here=request.here),
        skipped=request.skipped,
        on_begun=begin,
        on_reaped=lambda reaped: report(RunReaped(reaped=reaped)),
    )
    return StoreReaped()


if __name__ == "__main__":
    child_main(REAP, main)
