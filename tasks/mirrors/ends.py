"""Tells Prefect's automations how a run ended; an end that the server did not take is told when it is back."""

from __future__ import annotations

import logging

from data_contracts.errors import TrainwrightError
from data_contracts.run_report import RunReport
from infra.mirrors import newest_delivery, newest_end
from infra.orchestrator.events.model_events import announce_canary_end, announce_verdict
from infra.orchestrator.events.run_events import announce_end
from tasks.mirrors.outbox import PREFECT, Due, note
from tasks.run.report import FINAL
from tasks.run.run import Run
from tasks.stages.canary import ended_by

log = logging.getLogger("trainwright")


def announce(run: Run, report: RunReport, flow_run: str | None = None) -> bool:
    """Emit the events of a run's end; returns whether the server took all of them.

    Args:
        flow_run: whose page the events name; default: the one that is carried out here.
    """
    told = [announce_verdict(report), announce_end(report, flow_run)]
    if report.verdict in FINAL:  # a run that continues tells it then
        told.append(_announce_canary_end(run))
    return all(told)


def note_untold(run: Run) -> None:
    """Record that Prefect was not told of a run's end: the next run's end, or a reaper, tells it."""
    try:
        if run.recorded and (what := newest_end(run.store, run.run_id)) is not None:
            attempts, _ = newest_delivery(run.store, run.run_id, PREFECT, what)
            note(run.store, Due(run.run_id, None, PREFECT, what, attempts=attempts), False, "the server was away")
    except TrainwrightError as error:
        log.warning("Prefect is never told how %s ended: %s", run.run_id, error)


def _announce_canary_end(run: Run) -> bool:
    """Emit the event of the canary that this run ended, if it ended one; a failure is one warning and False."""
    if run.spec.promote.canary is None:
        return True
    try:
        receipt = ended_by(run)
    except TrainwrightError as error:
        log.warning("Prefect was not told whether a canary ended: %s", error)
        return False
    return receipt is None or announce_canary_end(receipt, run.resolved.actor)
