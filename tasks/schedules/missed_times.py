"""The times of a schedule that have no run: of a night without a server, a worker, or power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from data_contracts.errors import UsageError
from data_contracts.executions import BackfilledWindow, ScheduledTime
from data_contracts.run_report import RunReport
from infra.sources.resolve import Window, parse_window
from infra.store import Store, layout
from tasks.run.report import latest_report
from tasks.run.resolve import scheduled_key


@dataclass(frozen=True)
class MissedTimes:
    """The windows of a schedule's times; each has the key that the schedule itself would give its run.

    So a flow run that a worker takes late, a second call and the schedule share one run. The interface is that of
    `tasks.schedules.backfilling.Backfill`.
    """

    store: Store
    pipeline: str
    deployment: object
    windows: Sequence[Window]

    def key(self, window: Window) -> str:
        """The idempotency key of the scheduled time's run."""
        return scheduled_key(self.deployment, window.end)

    def begin(self, window: Window) -> None:
        """Nothing: the run itself records its time."""

    def end(self, window: Window, report: RunReport) -> None:
        """Nothing: the run itself records its time."""

    def ended(self, window: Window) -> BackfilledWindow | None:
        """How the time's run ended; None if there is none, or if it never ended: then it is continued."""
        run_id = self._run_of(self.key(window))
        if run_id is None:
            return None
        verdict: str = "deleted"
        if self.store.exists(layout.resolved(run_id)):
            report = latest_report(self.store, run_id)
            if report is None:
                return None
            verdict = report.verdict
        start, end = window.start.isoformat(), window.end.isoformat()
        return BackfilledWindow(start=start, end=end, run_id=run_id, verdict=verdict, by="", at="")

    def _run_of(self, key: str) -> str | None:
        noted = self.store.find_as(layout.scheduled(self.pipeline, key), ScheduledTime.from_json)
        if noted is not None:
            return noted.run_id
        # A run of an earlier version left its key alone.
        return self.store.find_as(layout.trigger(key), lambda value: str(value["run_id"]))


def windows_of(times: Sequence[datetime], length: str | None, title: str) -> list[Window]:
    """The window of each scheduled time: it ends then. UsageError if the deployment's runs have none of their own."""
    if not length or ".." in length:
        given = f"the window {length}" if length else "no window"
        raise UsageError(
            f"The deployment {title} gives its runs {given}, so each missed run would read the same data.",
            remedy="Give it a length with `trainwright deploy --window 1d`, or run the pipeline once.",
        )
    return [parse_window(length, time.astimezone(UTC)) for time in times]
