"""One process carries a run out at a time; a second process that is started for the same run attaches to it."""

from __future__ import annotations

import contextvars
import functools
import logging
import uuid
from collections.abc import Callable

from data_contracts.errors import Interrupted, StorageUnavailable, TrainwrightError, UsageError
from data_contracts.run_report import RunReport
from infra import stopping
from infra.orchestrator.events.run_events import announce_stall
from infra.processes.processes import uninterrupted
from infra.stopping import HandedOver
from infra.store import layout
from infra.store.lease import LeaseKeeper
from tasks.run.executions import begin_execution, note_handed_over
from tasks.run.report import finished_report, latest_report, num_attempts
from tasks.run.run import Run

LOOK_EVERY_S = 0.2
log = logging.getLogger("trainwright")


def attach(work: Callable[[Run], RunReport]) -> Callable[[Run], RunReport]:
    """Wrap the function that carries out a run: return a finished run's report, and wait for a run in progress.

    A run that ended without a final verdict, or whose process died, continues here. If a run ends while this process
    waits, it has ended for both, unless the cause lay outside (exit code 5). Attaching saves work and gives one report.
    Work that must not happen twice is fenced elsewhere (by a training's lease, by create-once).
    """

    @functools.wraps(work)
    def carry_out(run: Run) -> RunReport:
        if done := final_report(run):
            return done
        place = layout.lease(layout.run(run.run_id))
        holder = f"{run.run_id}/{uuid.uuid4().hex[:12]}"
        # The keeper's thread does not know the flow run otherwise.
        context = contextvars.copy_context()
        keeper = LeaseKeeper(run.store, place, holder, on_away=lambda error: context.run(_tell_of_stall, run, error))
        announced, goes_on, before = False, False, num_attempts(run)
        try:
            keeper.start()
            while (token := keeper.token(LOOK_EVERY_S)) is None:
                stopping.check()
                if done := final_report(run):
                    return done
                if not announced:
                    log.info("another process carries out the run %s; waiting for its verdict", run.run_id)
                    announced = True
            if done := final_report(run) or _ended_meanwhile(run, before):
                return done
            before = num_attempts(run)
            begin_execution(run, token)
            try:
                return work(run)
            except HandedOver:
                note_handed_over(run, token)
                raise
        except HandedOver:  # the next process need not wait
            goes_on = True
            raise
        finally:
            with uninterrupted():
                keeper.stop(abandon=not goes_on and not _has_reported(run, before))

    return carry_out


def _tell_of_stall(run: Run, error: StorageUnavailable) -> None:
    """Say that the run's store takes nothing, such as a full disk: its stage waits, and nothing else can say so."""
    log.warning("%s waits: %s", run.run_id, error)
    announce_stall(run.spec.name, run.run_id, error)


def _has_reported(run: Run, before: int) -> bool:
    """Whether the store says how the run ended; without that, whatever ends this process is a crash."""
    try:
        return finished_report(run) is not None or num_attempts(run) > before
    except TrainwrightError:
        return False


def final_report(run: Run) -> RunReport | None:
    """The run's report if it has a final verdict; UsageError if such a run was asked to go back to a step."""
    done = finished_report(run)
    if done is not None and run.from_step is not None:
        raise UsageError(
            f"The run {run.run_id} has ended ({done.verdict}) and cannot continue from step {run.from_step:,}.",
            remedy="Leave --from out, or run the spec with --new to train again.",
        )
    return done


def _ended_meanwhile(run: Run, before: int) -> RunReport | None:
    """The report of the process that this one waited for, if it ended this run and no retry is needed."""
    if num_attempts(run) == before or run.from_step is not None:
        return None
    report = latest_report(run.store, run.run_id)
    return None if report is None or report.exit_code == Interrupted.exit_code else report
