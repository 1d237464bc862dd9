"""What starts runs without a person: sensors and backfills, and what a run does while another one holds the lock.

Prefect's part of it is in `flows`; no stage is carried out here.

- A sensor looks whether new data has arrived, and starts one run for it. What has been seen are steps in the store,
  each created once before its run is started; the cursor is the newest step whose run has been started. Whoever finds
  a step after the cursor starts its run with the same key and moves the cursor. So two sensors at once, or one that
  is killed at any point, start one run for a step. The sensor of a spec lists its sources, and knows when a file
  counts as complete.
- A backfill has the windows of a span of time: which there are, which are done, and which would overlap an earlier one.
- Runs of a pipeline that a schedule or an event started hold one lease in the store, the *concurrency lock*, one after
  the other. Two that begin at once cannot both find nobody, and a holder that died is found as for any lease. A run
  that a person or CI started takes no lock, but its own lease counts: the others skip or wait for it, and never cancel
  it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, Interrupted, UsageError
from data_contracts.executions import BackfilledWindow
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec
from data_contracts.pipeline_spec.operations import Overlap
from data_contracts.records import SensorCursor, SensorStep
from data_contracts.run_report import RunReport
from infra import stopping
from infra.audit import actor, now
from infra.processes.processes import uninterrupted
from infra.sources.places import place_of
from infra.sources.resolve import Window, listed_sources, parse_window
from infra.store import Store, layout
from infra.store.lease import PATIENCE_S, RENEW_EVERY_S, LeaseKeeper, held_lease, standing_still, with_process
from infra.store.records import Pointer, PointerMoved, Versioned, parsed
from tasks.run.executions import unfinished_runs
from tasks.run.report import FINAL
from tasks.run.resolve import SENSOR_KEY

# Every so many steps, a step lists all files, so that no look reads more steps than this.
WHOLE_EVERY = 64
# A year of hours; more are a mistake in a date.
MOST_WINDOWS = 10_000
LOOK_EVERY_S = 2.0
# A gang ends within seconds of a cancel; after this time people are told that it does not.
SLOW_S = 120.0
log = logging.getLogger("trainwright")


def sensor_of(spec: PipelineSpec, root: Path, store: Store) -> Sensor:
    """The sensor of a spec in its folder `root`; UsageError if the spec has none."""
    wanted = spec.schedule.sensor
    if wanted is None or isinstance(spec.data, str):
        raise UsageError(
            f"schedule.sensor: the spec of {spec.name} has no sensor.", remedy="Add `schedule: {sensor: {}}` to it."
        )
    sources = spec.data.source

    def listed() -> Mapping[str, str]:
        try:
            return {one.uri: one.stamp for one in listed_sources(sources, root)}
        except FileNotFoundError as error:
            raise StillArriving from error

    def complete(uris: Iterable[str]) -> set[str]:
        return _beside(uris, wanted.done_file, sources, root)

    return Sensor(store, spec.name, listed, complete, wanted.settle_s)


def _beside(uris: Iterable[str], done_file: str | None, sources: list[SourceSpec], root: Path) -> set[str]:
    """The files whose folder has the file that marks it as complete."""
    if done_file is None:
        return set(uris)
    folders: dict[str, set[str]] = {}
    for uri in uris:
        folders.setdefault(uri.rpartition("/")[0], set()).add(uri)
    places = [(one.uri.startswith("s3://"), place_of(one, root)) for one in sources]
    found: set[str] = set()
    for folder, files in folders.items():
        mine = (place for is_s3, place in places if is_s3 == folder.startswith("s3://"))
        if any(place.find(f"{folder}/{done_file}") for place in mine):
            found |= files
    return found


class StillArriving(Exception):
    """Files change or vanish while they are listed."""


@dataclass(frozen=True)
class Look:
    """What a look found.

    Attributes:
        what: `nothing` new; `arriving`: new files that are not complete; `new`: complete files, and nobody was asked to
            start a run; `started`; `first`: all files are taken as seen.
        new: number of new or changed files.
    """

    what: Literal["nothing", "arriving", "new", "started", "first"]
    new: int
    sentence: str


@dataclass(frozen=True)
class Sensor:
    """The sensor of one pipeline in one store.

    Attributes:
        listed: lists the source's files: address and stamp, which changes with the bytes; StillArriving.
        complete: those of some addresses whose folder has what marks it as complete.
        settle_s: how long new files must stand still.
    """

    store: Store
    pipeline: str
    listed: Callable[[], Mapping[str, str]]
    complete: Callable[[Iterable[str]], set[str]]
    settle_s: float
    sleep: Callable[[float], None] = time.sleep

    def look(self, start: Callable[[str], str] | None = None) -> Look:
        """Look once.

        Args:
            start: starts a run with a key, once for each key, and returns its name; None: only look.

        Raises:
            UsageError: the cursor was deleted.
            CorruptError: it is damaged.
        """
        cursor = self._cursor() or self._begun()
        if cursor is None:
            return self._first(starts=start is not None)
        started = []
        while (step := self._step(cursor.value["step"] + 1)) is not None:
            if start is None:
                return Look("new", len(step.files), f"Step {step.n} of the sensor waits for its run to be started.")
            started += [start(key_of(step))] if step.starts else []
            cursor = self._move(cursor, step)
            if cursor is None:
                return Look("started", len(step.files), f"Another sensor of {self.pipeline} is at work.")
        seen = self._seen(cursor.value["step"])
        found, marks = self._found(seen)
        if found.what == "new" and start is not None:
            return self._start(cursor, found, marks, seen, start)
        return Look("started", 0, f"Started {started[-1]}, which an earlier look left.") if started else found

    def reset(self, to: Literal["now", "beginning"]) -> str:
        """Set the cursor: all files that are there count as seen, or none; returns what happens next.

        UsageError while files change, or if another sensor is at work.
        """
        try:
            files = self._marks() if to == "now" else {}
        except StillArriving as error:
            raise UsageError(f"Files of {self.pipeline} change while they are listed.", remedy="Try again.") from error
        steps, cursor = self._numbers(), self._pointer.read()
        known = None
        with contextlib.suppress(CorruptError):
            known = self._cursor()
        n = max([-1 if known is None else known.value["step"], *steps]) + 1
        sensor = uuid.uuid4().hex if known is None else known.value["sensor"]
        step = self._record(sensor, n, files.values(), whole=True, starts=False)
        if step is None or self._move(cursor, step) is None:
            raise UsageError(f"Another sensor of {self.pipeline} is at work.", remedy="Try again.")
        if to == "now":
            return f"The {len(files):,} files of {self.pipeline} that are there count as seen."
        return f"No file of {self.pipeline} counts as seen: the next look starts a run for those that are there."

    @property
    def _pointer(self) -> Pointer:
        return self.store.pointer(layout.sensor_cursor(self.pipeline))

    def _cursor(self) -> Versioned | None:
        """The cursor; None if there is none. CorruptError if it is damaged."""
        found = self._pointer.read()
        if found is not None:
            parsed(layout.sensor_cursor(self.pipeline), SensorCursor.model_validate, found.value)
        return found

    def _begun(self) -> Versioned | None:
        """The cursor of a sensor that was killed in its first look; None if it has never looked; UsageError."""
        steps = self._numbers()
        if not steps:
            return None
        first = self._step(0)
        if steps == [0] and first is not None:  # nothing has been started since
            return self._move(None, first) or self._pointer.read()
        raise UsageError(
            f"The cursor of the sensor of {self.pipeline} was deleted, so it is unknown which files have had a run.",
            remedy="`trainwright sensor SPEC --reset now` takes all files as seen, `--reset beginning` none.",
        )

    def _first(self, *, starts: bool) -> Look:
        try:
            marks = self._marks()
        except StillArriving:
            return Look("arriving", 0, "Files change while they are listed.")
        said = (
            f"The first look of the sensor of {self.pipeline}: the {len(marks):,} files that are there count as seen."
        )
        if starts:
            step = self._record(uuid.uuid4().hex, 0, marks.values(), whole=True, starts=False) or self._step(0)
            assert step is not None
            self._move(None, step)
        return Look("first", 0, said)

    def _found(self, seen: set[str]) -> tuple[Look, dict[str, str]]:
        """What is new, and the marks of all files that are there; new files are looked at twice."""
        try:
            marks = self._marks()
            new = {name for name, mark in marks.items() if mark not in seen}
            if not new:
                return Look("nothing", 0, f"No new data for {self.pipeline}."), marks
            lacking = new - self.complete(new)
            if not lacking:
                self.sleep(self.settle_s)
                later = self._marks()
                lacking = {name for name in new if later.get(name) != marks[name]}
                lacking |= {name for name in later.keys() - marks.keys() if later[name] not in seen}
        except StillArriving:
            return Look("arriving", 0, "Files change while they are listed."), {}
        said = f"{min(new)} is new or changed"
        if len(new) > 1:
            said = f"{len(new):,} files are new or changed, such as {min(new)}"
        if lacking:
            return Look("arriving", len(new), f"{said}; {min(lacking)} is not complete yet."), marks
        return Look("new", len(new), f"{said}."), marks

    def _start(
        self, cursor: Versioned, look: Look, marks: Mapping[str, str], seen: set[str], start: Callable[[str], str]
    ) -> Look:
        n = cursor.value["step"] + 1
        whole = n % WHOLE_EVERY == 0
        files = [mark for mark in marks.values() if whole or mark not in seen]
        step = self._record(cursor.value["sensor"], n, files, whole=whole, starts=True)
        if step is None:
            return Look("started", look.new, f"Another sensor of {self.pipeline} is at work.")
        name = start(key_of(step))
        self._move(cursor, step)
        return Look("started", look.new, f"{look.sentence} Started {name}.")

    def _marks(self) -> dict[str, str]:
        return {name: digest(f"{name}\n{stamp}")[:16] for name, stamp in self.listed().items()}

    def _seen(self, n: int) -> set[str]:
        seen: set[str] = set()
        while (step := self._step(n)) is not None:
            seen |= set(step.files)
            if step.whole:
                return seen
            n -= 1
        raise UsageError(
            f"Step {n} of the sensor of {self.pipeline} is gone, so it is unknown which files have had a run.",
            remedy="`trainwright sensor SPEC --reset now` takes all files as seen, `--reset beginning` none.",
        )

    def _step(self, n: int) -> SensorStep | None:
        path = layout.sensor_step(self.pipeline, n)
        step = self.store.find_as(path, SensorStep.from_json)
        if step is not None and step.n != n:  # the cursor would move to it, and the next look begin there
            raise CorruptError(f"{path} is step {step.n} of the sensor.", details={"file": path})
        return step

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self.store.list(layout.sensor_steps(self.pipeline)))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _record(self, sensor: str, n: int, files: Iterable[str], *, whole: bool, starts: bool) -> SensorStep | None:
        """Create step `n`; None if another sensor was faster."""
        step = SensorStep(sensor=sensor, n=n, files=sorted(files), whole=whole, starts=starts, by=actor(), at=now())
        return step if self.store.create_once(layout.sensor_step(self.pipeline, n), step.to_json()) else None

    def _move(self, cursor: Versioned | None, step: SensorStep) -> Versioned | None:
        """Move the cursor to a step; None if another sensor moved it."""
        with contextlib.suppress(PointerMoved):
            return self._pointer.swap(cursor, {"sensor": step.sensor, "step": step.n})
        return None


def key_of(step: SensorStep) -> str:
    """The idempotency key of a step's run."""
    return f"{SENSOR_KEY}{step.sensor}:{step.n}"


@dataclass(frozen=True)
class Backfill:
    """The windows of one pipeline in one store."""

    store: Store
    pipeline: str
    windows: Sequence[Window]

    def refuse_overlaps(self) -> None:
        """UsageError if a window shares times with another one that an earlier backfill of the pipeline has begun."""
        wanted = {_window_name(one) for one in self.windows}
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
        return f"backfill:{self.pipeline}:{_window_name(window)}"

    def begin(self, window: Window) -> None:
        """Record that a window was begun; once."""
        self._record(window, "begun")

    def end(self, window: Window, report: RunReport) -> None:
        """Record a window's final verdict; once. A run that can continue has none."""
        if report.verdict in FINAL:
            self._record(window, "ended", run_id=report.run_id, verdict=report.verdict)

    def ended(self, window: Window) -> BackfilledWindow | None:
        """The window's verdict, however long ago; None if it has none."""
        path = layout.backfilled(self.pipeline, _window_name(window), "ended")
        return self.store.find_as(path, BackfilledWindow.from_json)

    def _record(self, window: Window, what: str, **verdict: str) -> None:
        times = {"start": _iso(window.start), "end": _iso(window.end)}
        self.store.create_once(
            layout.backfilled(self.pipeline, _window_name(window), what),
            BackfilledWindow(**times, by=actor(), at=now(), **verdict).to_json(),
        )


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


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _window_name(window: Window) -> str:
    """The window as part of a path: the same for the same times, whatever their zone."""
    return "-".join(f"{one.astimezone(UTC):%Y%m%dt%H%M%S}.{one.microsecond:06d}z" for one in (window.start, window.end))


class Skipped(Exception):
    """An earlier run of the pipeline is unfinished, and this one is not to wait."""


@dataclass(frozen=True)
class ConcurrencyLock:
    """One run's claim to the concurrency lock of its pipeline.

    Attributes:
        key: the run's idempotency key: an execution of the same run is never skipped because of the other one.
        waits: whether it waits in any case: it continues a run that was begun before.
        scheduled_s: when it was meant to start; a run never cancels one that was meant to start later.
        patience_s: how long a lease must stand still before its holder counts as dead.
    """

    store: Store
    pipeline: str
    overlap: Overlap
    key: str
    waits: bool = False
    scheduled_s: int = 0
    patience_s: float = PATIENCE_S
    renew_s: float = RENEW_EVERY_S
    look_every_s: float = LOOK_EVERY_S

    @contextlib.contextmanager
    def hold(self, stop: Callable[[], None]) -> Iterator[threading.Event]:
        """Wait for the lock and hold it; yields the event that a newer run asked this one to end.

        Args:
            stop: called once, in a thread of its own, when a newer run asks (`cancel_old`).

        Raises:
            Skipped: with `skip`, if an earlier run lives.
            HandedOver: the worker is stopped as planned while this run waits.
        """
        holder = f"{self._mark}{self.scheduled_s}/{uuid.uuid4().hex[:12]}"
        keeper = LeaseKeeper(self.store, self._path, holder, patience_s=self.patience_s, renew_s=self.renew_s)
        end_request, over = threading.Event(), threading.Event()
        try:
            keeper.start()
            token = self._take(keeper)
            self._wait_for_others()
            path = layout.end_request(self.pipeline, token, with_process(holder))
            watch = threading.Thread(target=self._watch, args=(path, end_request, over, stop), daemon=True)
            if self.overlap == "cancel_old":
                watch.start()
            yield end_request
        finally:
            over.set()
            with uninterrupted():
                keeper.stop()

    @property
    def _path(self) -> str:
        return layout.concurrency_lock(self.pipeline)

    @property
    def _mark(self) -> str:
        """How a holder begins that carries out the same run."""
        return f"{digest(self.key)[:16]}/"

    def _take(self, keeper: LeaseKeeper) -> int:
        """Wait until the lock is ours; its fencing token."""
        first, since, said = None, time.monotonic(), ""
        while (token := keeper.token(self.look_every_s)) is None:
            stopping.check()
            with contextlib.suppress(Interrupted):
                current = held_lease(self.store, self._path)
                if current is None:
                    continue
                if first is None or first.value["token"] != current.value["token"]:
                    first, since, said = current, time.monotonic(), ""
                if first == current:
                    continue  # its holder may be dead; one whose beat moves lives
                said = said or self._meet(current.value["holder"], current.value["token"])
                if said == "asked" and time.monotonic() - since > SLOW_S:
                    log.warning("The earlier run of %s was asked to end and has not ended yet.", self.pipeline)
                    since = time.monotonic()
        return token

    def _meet(self, holder: str, token: int) -> str:
        """What to do about a lock whose holder lives: `asked` it to end, or `waits`; Skipped."""
        same = self.waits or holder.startswith(self._mark)
        if self.overlap == "skip" and not same:
            raise Skipped(self._unfinished(self._living_runs()))
        if self.overlap == "cancel_old" and not same:
            if _time_in(holder) > self.scheduled_s:
                raise Skipped(f"A newer run of {self.pipeline} is at work (schedule.overlap: cancel_old).")
            record = {"schema_version": 1, "at": now()}
            self.store.create_once(layout.end_request(self.pipeline, token, holder), record)
            log.info("%s It is cancelled.", self._unfinished([]))
            return "asked"
        log.info("%s This one waits.", self._unfinished([]))
        return "waits"

    def _wait_for_others(self) -> None:
        """Wait for runs that hold no lock, because a person or CI started them; Skipped with `skip`."""
        has_said = False
        while living := self._living_runs():
            if self.overlap == "skip" and not self.waits:
                raise Skipped(self._unfinished(living))
            if not has_said:
                log.info("%s This one waits.", self._unfinished(living))
                has_said = True
            stopping.check()
            time.sleep(self.look_every_s)

    def _living_runs(self) -> list[str]:
        """The unfinished runs of the pipeline whose process lives, apart from this one."""
        paths = {}
        for run_id in unfinished_runs(self.store):
            path = layout.lease(layout.run(run_id))
            with contextlib.suppress(CorruptError, UsageError):  # the reaper reports damage
                if held_lease(self.store, path) is not None and self._is_another(run_id):
                    paths[path] = run_id
        dead = standing_still(self.store, paths, patience_s=self.patience_s, unreadable=lambda *_: None)
        return [run_id for path, run_id in paths.items() if path not in dead and self._is_held(path)]

    def _is_held(self, path: str) -> bool:
        with contextlib.suppress(CorruptError, UsageError):
            return held_lease(self.store, path) is not None
        return False

    def _is_another(self, run_id: str) -> bool:
        pipeline = self.store.read_as(layout.resolved(run_id), lambda value: str(value["spec"]["name"]))
        mine = self.store.find_as(layout.trigger(self.key), lambda value: value["run_id"])
        return pipeline == self.pipeline and run_id != mine

    def _unfinished(self, living: list[str]) -> str:
        which = f"The run {living[0]}" if living else "An earlier run"
        return f"{which} of {self.pipeline} is unfinished (schedule.overlap: {self.overlap})."

    def _watch(self, path: str, end_request: threading.Event, over: threading.Event, stop: Callable[[], None]) -> None:
        while not over.wait(self.look_every_s):
            with contextlib.suppress(Interrupted):
                if self.store.exists(path):
                    end_request.set()
                    log.info("A newer run of %s takes the place of this one (schedule.overlap).", self.pipeline)
                    stop()
                    return


def _time_in(holder: str) -> int:
    """When the holder of a lock was meant to start; 0 if it does not say so."""
    parts = holder.split("/")
    return int(parts[1]) if len(parts) > 2 and parts[1].isascii() and parts[1].isdigit() else 0
