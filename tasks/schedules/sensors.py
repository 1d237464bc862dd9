"""A sensor: looks whether new data has arrived, and starts one run for it.

What has been seen are steps in the store, each created once before its run is started; the cursor is the newest step
whose run has been started. Whoever finds a step after the cursor starts its run with the same key and moves the cursor.
So two sensors at once, or one that is killed at any point, start one run for a step.

The sensor of a spec lists its sources, and knows when a file counts as complete.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.operations import SensorCursor, SensorStep
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec
from infra.audit import actor, now
from infra.sources.places import place_of
from infra.sources.resolve import listed_sources
from infra.store import Store, layout
from infra.store.records import Pointer, PointerMoved, Versioned, parsed
from tasks.run.resolve import SENSOR_KEY

# Every so many steps, a step lists all files, so that no look reads more steps than this.
WHOLE_EVERY = 64


def sensor_of(spec: PipelineSpec, root: Path, store: Store, sleep: Callable[[float], None] = time.sleep) -> Sensor:
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

    return Sensor(store, spec.name, listed, complete, wanted.settle_s, sleep)


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
        self, cursor: Versioned, found: Look, marks: Mapping[str, str], seen: set[str], start: Callable[[str], str]
    ) -> Look:
        n = cursor.value["step"] + 1
        whole = n % WHOLE_EVERY == 0
        files = [mark for mark in marks.values() if whole or mark not in seen]
        step = self._record(cursor.value["sensor"], n, files, whole=whole, starts=True)
        if step is None:
            return Look("started", found.new, f"Another sensor of {self.pipeline} is at work.")
        name = start(key_of(step))
        self._move(cursor, step)
        return Look("started", found.new, f"{found.sentence} Started {name}.")

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
        path = layout.sensor_step(self.pipeline, n)
        return step if self.store.create_once(path, step.to_json()) else None

    def _move(self, cursor: Versioned | None, step: SensorStep) -> Versioned | None:
        """Move the cursor to a step; None if another sensor moved it."""
        with contextlib.suppress(PointerMoved):
            return self._pointer.swap(cursor, {"sensor": step.sensor, "step": step.n})
        return None


def key_of(step: SensorStep) -> str:
    """The idempotency key of a step's run."""
    return f"{SENSOR_KEY}{step.sensor}:{step.n}"
