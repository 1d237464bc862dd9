"""The windows of a backfill: which there are, which are done, and which would overlap an earlier one.

They are those of a span of time, or of a schedule's times that have no run: of a night without a server, a worker, or
power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from data_contracts.errors import UsageError
from data_contracts.executions import BackfilledWindow, ScheduledTime
from data_contracts.run_report import RunReport
from infra.audit import actor, now
from infra.sources.resolve import Window, parse_window
from infra.store import Store, layout
from tasks.run.report import FINAL, latest_report
from tasks.run.resolve import scheduled_key

# A year of hours; more are a mistake in a date.
MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class Backfill:
    """The windows of one pipeline in one store."""

    store: Store
    pipeline: str
    windows: Sequence[Window]

    def refuse_overlaps(self) -> None:
        """UsageError if a window shares times with another one that an earlier backfill of the pipeline has begun."""
        wanted = {_name(one) for one in self.windows}
        first, last = self.windows[0].start, self.windows[-1].end
        for name in self.store.list(layout.backfills(self.pipeline)):
            if name in wanted:
                continue
            known = self.store.find_as(layout.backfilled(self.pipeline, name, "begun"), BackfilledWindow.from_json)
            before = None if known is None else Window.from_iso(known.start, known.end)
            if before is None or before.end <= first or before.start >= last:
                continue  # a year of hours beside another year is soon compared
            for one in self.windows:
                if one.start < before.end and before.start < one.end:
                    raise UsageError(
                        f"The window {one} overlaps {before}, which an earlier backfill of {self.pipeline} has begun.",
                        remedy="Take the same boundaries; `trainwright run --window` runs any window.",
                    )

    def key(self, window: Window) -> str:
        """The idempotency key of a window's run: whoever asks for the window again gets the same run."""
        return f"backfill:{self.pipeline}:{_name(window)}"

    def begin(self, window: Window) -> None:
        """Record that a window was begun; once."""
        self._record(window, "begun", BackfilledWindow(start=_iso(window.start), end=_iso(window.end), **_by()))

    def end(self, window: Window, report: RunReport) -> None:
        """Record a window's final verdict; once. A run that can continue has none."""
        if report.verdict in FINAL:
            done = BackfilledWindow(
                start=_iso(window.start), end=_iso(window.end), run_id=report.run_id, verdict=report.verdict, **_by()
            )
            self._record(window, "ended", done)

    def ended(self, window: Window) -> BackfilledWindow | None:
        """The window's verdict, however long ago; None if it has none."""
        path = layout.backfilled(self.pipeline, _name(window), "ended")
        return self.store.find_as(path, BackfilledWindow.from_json)

    def _record(self, window: Window, what: str, record: BackfilledWindow) -> None:
        self.store.create_once(layout.backfilled(self.pipeline, _name(window), what), record.to_json())


def windows_between(first: str, last: str, every: str, present: datetime | None = None) -> list[Window]:
    """The windows from `first` to `last` (ISO; without a zone: UTC), each `every` long (such as 1d), oldest first.

    UsageError if there are none or too many, if the last one would be shorter or if it ends in the future.
    """
    span = parse_window(f"{first}..{last}", datetime.now(UTC))
    step = _length(every)
    if span.end > (present or datetime.now(UTC)):
        raise UsageError(
            f"--to: {last} lies in the future, so the data of the last window is not complete.",
            remedy="End at a time that has passed.",
        )
    count, rest = divmod(span.end - span.start, step)
    if rest:
        raise UsageError(
            f"--every: {every} does not divide the time from {first} to {last}: {rest} would be left.",
            remedy=f"End at {_iso(span.start + count * step)} or {_iso(span.start + (count + 1) * step)}.",
        )
    if count > MOST_WINDOWS:
        raise UsageError(
            f"From {first} to {last} there are {count:,} windows of {every}, more than {MOST_WINDOWS:,}.",
            remedy="Check the dates, or take longer windows.",
        )
    return [Window(span.start + n * step, span.start + (n + 1) * step) for n in range(count)]


def _length(text: str) -> timedelta:
    try:
        if ".." in text:
            raise UsageError("it is a window")
        width = parse_window(text, datetime.now(UTC))
    except UsageError as error:
        raise UsageError(
            f"--every: {text!r} is not a length above 0.", remedy="Write a number and s, m, h, d or w: 1d."
        ) from error
    return width.end - width.start


def _by() -> dict[str, str]:
    return {"by": actor(), "at": now()}


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _name(window: Window) -> str:
    """The window as part of a path: the same for the same times, whatever their zone."""
    return "-".join(f"{one.astimezone(UTC):%Y%m%dt%H%M%S}.{one.microsecond:06d}z" for one in (window.start, window.end))


@dataclass(frozen=True)
class MissedTimes:
    """The windows of a schedule's times; each has the key that the schedule itself would give its run.

    So a flow run that a worker takes late, a second call and the schedule share one run. The interface is that of
    `tasks.schedules.backfills.Backfill`.
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
