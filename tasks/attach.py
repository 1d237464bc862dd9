"""One run is carried out by one process at a time; another that was started for the same run attaches to it."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable

from data_contracts.handoffs import RunReport
from infra.launch.keeper import Keeper
from infra.launch.processes import uninterrupted
from infra.store import layout
from tasks.report import finished_report
from tasks.run import Run

LOOK_EVERY_S = 0.2
log = logging.getLogger("trainwright")


def attach(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap what carries a run out: a run with a final verdict answers its report, one that is under way is waited for.

    A run that ended without a final verdict, or whose process died, goes on here. This spares work and keeps the
    report to one voice; what must not happen twice is fenced where it happens (a training's lease, create-once).
    """

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        if done := finished_report(run):
            return done
        place = layout.lease(layout.run(run.run_id))
        keeper = Keeper(run.store, place, f"{run.run_id}/{uuid.uuid4().hex[:12]}")
        told = False
        try:
            keeper.start()
            while keeper.token(LOOK_EVERY_S) is None:
                if done := finished_report(run):
                    return done
                if not told:
                    log.info("run %s is under way in another process; waiting for its verdict", run.run_id)
                    told = True
            return finished_report(run) or work(run)
        finally:
            with uninterrupted():
                keeper.stop()

    return carry_out
