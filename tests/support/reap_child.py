"""The reaper's child with a stand-in for Prefect; a run that TRAINWRIGHT_TEST_DEADLY names ends it, or fills it."""

from __future__ import annotations

import os
import signal
import time

from data_contracts.messages import Message
from data_contracts.messages.commands import REAP, ReapRequest, RunBegun, StoreReaped
from infra.processes.child_main import Report, child_main
from tasks.run import reap_worker
from tests.support.reaped import Prefect

DEADLY = "TRAINWRIGHT_TEST_DEADLY"


def main(request: ReapRequest, report: Report) -> StoreReaped:
    reap_worker.PrefectResumer = lambda pool, here: Prefect()  # type: ignore[assignment,misc]
    run_id, _, how = os.environ[DEADLY].partition("=")

    def and_die(message: Message) -> None:
        report(message)
        if isinstance(message, RunBegun) and message.run_id == run_id:
            if how == "memory":
                held = b"x" * 2**29
                time.sleep(60)
                raise AssertionError(len(held))
            os.kill(os.getpid(), getattr(signal, how))

    return reap_worker.main(request, and_die)


if __name__ == "__main__":
    child_main(REAP, main)
