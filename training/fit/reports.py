"""What a rank reports to its node's supervisor, through the files of `infra.gang.rank_files`. Torch-free.

It reports where the rank is, how much of its steps is its own work, its measures for people who watch it, and its end;
it decides nothing. A thread reports, because a hung rank cannot. The main thread adds a few numbers per step and takes
no lock.

A rank that hangs in its own work leaves all others waiting inside a collective, and a slow rank makes all others
equally slow. So only the time outside of collectives counts. A backward pass over several ranks mixes both (DDP
exchanges gradients inside it, out of sight), so it counts as neither.

With a GPU, the host only queues work, so by its clock a step takes as long as queueing it: a slow device would look
fast, and a kernel that never ends would look like progress. What counts there are events that the device itself
records; reading them never waits for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import psutil

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import (
    PLACES,
    STEP_BOUNDS,
    RankAnswer,
    RankMeasures,
    RankReport,
    Saved,
    TrainingSummary,
)
from infra.gang.rank_files import RankFiles, stop_file
from infra.processes.this_process import COUNTERS, now_s

# A rank reports at least this often, even when it makes no progress.
PULSE_S = 1.0
# A heartbeat names this many of the newest checkpoints: far more than are sealed between two heartbeats, but not all of
# a long training's.
NAMED_CHECKPOINTS = 16
# Places whose time is a rank's own work. The other places are: starting, between, backward, collective, checkpoint,
# validation, and hooks, where the user's code may take as long as it likes.
OWN = ("fetching", "forward", "stepping")
COLLECTIVE = "collective"
# More than are saved between two heartbeats.
NAMED_SAVES = 4


@dataclass
class RankProgress:
    """What the training notes about itself between two reports; `RankReport` explains the fields."""

    device: str = ""
    step: int = 0
    epoch: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    begun_with: str = ""
    micro_batch: int = 0


class Reports:
    """Writes one rank's files.

    Attributes:
        progress: how far training is; set by other modules. activity: where the rank is. measures: its measures for
          people who watch.
    """

    def __init__(self, scratch: Path, rank: int, interval_s: float) -> None:
        self.progress = RankProgress()
        self.activity = RankActivity()
        self.measures = Measures(self.activity)
        self._files = RankFiles(scratch, rank)
        self._stop = str(stop_file(scratch))  # checked before every step
        self._interval_s = interval_s
        self._written = -math.inf
        self._waited_s = 0.0
        self._waited_before_s = 0.0
        self._began: float | None = None
        self._lock = threading.Lock()
        self._phase: Literal["starting", "training", "done"] = "starting"
        self._checkpoints: list[Checkpoint] = []
        self._num_checkpoints = 0
        self._wait_share = 0.0
        self._saving = False
        self._waits_for = ""
        self._stalls, self._stalled_s = 0, 0.0

    @property
    def wait_share(self) -> float:
        """Share of the time since `begin` spent waiting for data."""
        if self._began is None:
            return 0.0
        return round((self._waited_before_s + self._waited_s) / max(1e-9, time.monotonic() - self._began), 4)

    def begin(self) -> None:
        """Report that training begins."""
        self._phase = "training"
        self._began = time.monotonic()

    @property
    def stop_asked(self) -> bool:
        """Whether the supervisor asked this rank to write a checkpoint and end."""
        return os.path.exists(self._stop)

    @property
    def is_due(self) -> bool:
        """Whether the interval since the last report is over."""
        return time.monotonic() - self._written >= self._interval_s

    def waited(self, seconds: float) -> None:
        """Count time spent waiting for the next batch."""
        self._waited_s += seconds

    def report(self, *, now: bool = False) -> None:
        """Write the report, if the interval is over or `now`."""
        if not now and not self.is_due:
            return
        since = time.monotonic() - self._written
        self._wait_share = round(min(1.0, self._waited_s / since), 4) if math.isfinite(since) else 0.0
        self._write()
        self._waited_before_s += self._waited_s
        self._written, self._waited_s = time.monotonic(), 0.0

    def begun_with(self, sentence: str) -> None:
        """Report what was loaded before step 1."""
        self.progress.begun_with = sentence

    def sealed(self, checkpoint: Checkpoint) -> None:
        """Report a sealed checkpoint to the supervisor at once; from any thread."""
        self._num_checkpoints += 1
        self._checkpoints = [*self._checkpoints, checkpoint][-NAMED_CHECKPOINTS:]
        self._write()

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Report that the checkpoint of a step is being saved, and how it went; from any thread."""
        began, sealed = now_s(), False
        self._report_saving(True)
        try:
            yield
            sealed = True
        finally:
            self.measures.saved(Saved(step=step, began=began, ended=now_s(), sealed=sealed))
            self._report_saving(False)

    def _report_saving(self, going_on: bool) -> None:
        self._saving, self._waits_for = going_on, ""
        self.activity.moved()
        self._write()

    def stalled(self, seconds: float) -> None:
        """Count a checkpoint for which the steps waited, without the work of the background thread."""
        self._stalls += 1
        self._stalled_s += seconds

    def waits(self, why: str) -> None:
        """Report why saving a checkpoint takes longer; from any thread."""
        self._waits_for = why
        self._write()

    def pulse(self) -> None:
        """Keep reporting where this rank is, from a thread of its own, whatever happens to the other threads."""
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def failed(self, error: TrainwrightError) -> None:
        """Report why this rank ends; the first reason stays."""
        with self._lock:
            self._files.write_error(error)

    def done(self, checkpoint: Checkpoint | None, summary: TrainingSummary) -> None:
        """Report that this rank has trained to the end."""
        self._phase = "done"
        self.report(now=True)
        self._files.write_answer(RankAnswer(checkpoint=checkpoint, plan=summary.to_json()))

    def _pulse(self) -> None:
        while True:
            time.sleep(max(PULSE_S, self._interval_s))
            self._write()

    def _write(self) -> None:
        with self._lock:
            self._files.write_report(self._current())

    def _current(self) -> RankReport:
        progress, activity = self.progress, self.activity.read()
        return RankReport(
            rank=self._files.rank,
            device=progress.device,
            phase=self._phase,
            step=progress.step,
            epoch=progress.epoch,
            samples=progress.samples,
            metrics=progress.metrics,
            checkpoints=self._checkpoints,
            num_checkpoints=self._num_checkpoints,
            wait_share=self._wait_share,
            begun_with=progress.begun_with,
            micro_batch=progress.micro_batch,
            saving=self._saving,
            waits_for=self._waits_for,
            stalls=self._stalls,
            stalled_s=round(self._stalled_s, 6),
            place=activity.place,
            place_s=round(activity.place_s, 3),
            moves=activity.moves,
            own_s=round(activity.own_s, 6),
            steps=activity.steps,
            used=COUNTERS.total(),
            measured=self.measures.record(activity.spent_s),
        )


class Activity(NamedTuple):
    """Where a rank is.

    Attributes:
        place: one of PLACES; place_s: seconds since it is there.
        moves: counts everything that gets done: micro-batches, batches of a validation, parts of a checkpoint.
        steps: micro-batches that are done; own_s: seconds of own work so far.
        spent_s: seconds in each place so far, without the present stay.
    """

    place: str
    place_s: float
    moves: int
    steps: int
    own_s: float
    spent_s: dict[str, float]


class RankActivity:
    """One rank's place. Its main thread updates it and another thread reads it.

    Attributes:
        place: where the host is now; moves, steps, spent_s: as in `Activity`, by the host.
        stepped_at: when the newest micro-batch was done.
        device: the same by a GPU; None on a CPU.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.place = "starting"
        self.since = clock()
        self.moves = self.steps = 0
        self.stepped_at = self.since
        self.spent_s = dict.fromkeys(PLACES, 0.0)
        self.device: DeviceTimes | None = None

    def enter(self, place: str) -> None:
        """Set the place where the rank is from now on."""
        now = self._clock()
        self.spent_s[self.place] += now - self.since
        self.since = now
        self.place = place
        if self.device is not None:
            self.device.mark(place)

    def moved(self) -> None:
        """Count a piece of work that was done."""
        self.moves += 1

    def stepped(self) -> None:
        """Count a micro-batch that was trained on."""
        self.steps += 1
        self.moves += 1
        self.stepped_at = self._clock()
        if self.device is not None:
            self.device.mark(self.place, ends_batch=True)

    def follow(self, device: DeviceTimes) -> None:
        """Let a GPU say from now on where the rank is. What the host has spent until here stays counted."""
        self.enter(self.place)
        device.place, device.spent_s = self.place, dict(self.spent_s)
        device.mark(self.place)
        self.device = device

    def read(self) -> Activity:
        """Where the rank is. With a GPU: where that is, unless it has done everything that it was given."""
        device, place, since, moves, steps, spent_s = (
            self.device, self.place, self.since, self.moves, self.steps, self.spent_s,
        )  # fmt: skip
        if device is not None:
            if not device.look():
                place, since = device.place, device.since
            moves, steps, spent_s = moves - (steps - device.batches), device.batches, device.spent_s
        own_s = sum(spent_s.get(own, 0.0) for own in OWN)
        return Activity(place, self._clock() - since, moves, steps, own_s, dict(spent_s))


def watch_collectives(activity: RankActivity) -> None:
    """Record every wait of this thread for a collective, whichever code started it."""
    import torch.distributed as dist

    real, mine = dist.Work.wait, threading.get_ident()

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != mine:
            return real(work, *args, **kwargs)
        before = activity.place
        activity.enter(COLLECTIVE)
        try:
            return real(work, *args, **kwargs)
        finally:
            activity.enter(before)

    dist.Work.wait = wait  # type: ignore[assignment, method-assign]


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None:
        """Have the device note when it gets here."""

    def query(self) -> bool:
        """Whether the device got here."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to a later one."""


@dataclass
class _Mark:
    place: str
    event: Event
    begins_step: bool
    ends_batch: bool


def timed_event() -> Event:
    """An event of the current CUDA device."""
    import torch

    event: Event = torch.cuda.Event(enable_timing=True)
    return event


class DeviceTimes:
    """The rank's places as its device passes through them.

    The training thread adds marks. One thread at a time may look.

    Args:
        on_device: entered by the thread that looks, to choose the device. A thread that has chosen none makes CUDA
            create a context on the first GPU, which takes half a gigabyte.

    Attributes:
        place: where the device is; since: when it was first seen there, by `clock`.
        spent_s: seconds in each place. batches: micro-batches that are done.
        step_s: lengths of the steps that are done and that nobody has taken yet, from `begins_step` to the end of the
            last micro-batch.
    """

    def __init__(
        self,
        make_event: Callable[[], Event] = timed_event,
        clock: Callable[[], float] = time.monotonic,
        on_device: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.place, self.since = "starting", clock()
        self.spent_s: dict[str, float] = {}
        self.batches = 0
        self.step_s: list[float] = []
        self._make_event, self._clock, self._on_device = make_event, clock, on_device
        self._ahead: deque[_Mark] = deque()
        self._reached: _Mark | None = None
        self._in_step_s = self._step_s = 0.0

    def mark(self, place: str, *, begins_step: bool = False, ends_batch: bool = False) -> None:
        """Queue a mark: the device enters `place` when it gets here."""
        event = self._make_event()
        event.record()
        self._ahead.append(_Mark(place, event, begins_step, ends_batch))

    def look(self) -> bool:
        """Count what the device has done since the last look; whether it has done all that was marked.

        A device that fails answers no question any more. The training thread raises its error; the reports go on.
        """
        with contextlib.suppress(RuntimeError), self._on_device():
            self._pass_marks()
        return not self._ahead

    def _pass_marks(self) -> None:
        while self._ahead and self._ahead[0].event.query():
            mark = self._ahead[0]
            if self._reached is not None:
                # Events on two streams may come in another order than they were recorded in.
                seconds = max(0.0, self._reached.event.elapsed_time(mark.event) / 1000)
                self.spent_s[self.place] = self.spent_s.get(self.place, 0.0) + seconds
                self._in_step_s += seconds
            if mark.ends_batch:
                self.batches += 1
                self._step_s = self._in_step_s
            if mark.begins_step:
                if self._step_s:
                    self.step_s.append(self._step_s)
                self._in_step_s = self._step_s = 0.0
            self._reached, self.place, self.since = mark, mark.place, self._clock()
            self._ahead.popleft()


class Measures:
    """One rank's measures since it began.

    Attributes:
        loss, gradient_norm, mfu: as in `RankMeasures`; set by `measuring`.
        device_memory: the most bytes that were allocated on the device; None where there is no device.
    """

    def __init__(self, activity: RankActivity, clock: Callable[[], float] = time.monotonic) -> None:
        self.loss: float | None = None
        self.gradient_norm: float | None = None
        self.mfu: float | None = None
        self.device_memory: Callable[[], int] | None = None
        self._activity, self._clock = activity, clock
        self._began: float | None = None
        self._counts = [0] * (len(STEP_BOUNDS) + 1)
        self._steps_s = self._saving_s = 0.0
        self._saves = self._failed_saves = 0
        self._newest_saves: list[Saved] = []

    def step(self) -> None:
        """Note that a step is done, if one has begun, and that the next begins; call it between two steps.

        A step ends with its last micro-batch: a checkpoint or a validation after it does not count.
        """
        if self._activity.device is not None:
            self._activity.device.mark(self._activity.place, begins_step=True)
            return
        done = self._activity.stepped_at
        if self._began is not None and done > self._began:
            self._count(done - self._began)
        self._began = self._clock()

    def _count(self, step_s: float) -> None:
        self._counts[bisect_left(STEP_BOUNDS, step_s)] += 1
        self._steps_s += step_s

    def saved(self, saved: Saved) -> None:
        """Count a checkpoint that was sealed, or that could not be; from any thread, one at a time."""
        self._saves += saved.sealed
        self._failed_saves += not saved.sealed
        self._saving_s += saved.ended - saved.began
        self._newest_saves = [*self._newest_saves, saved][-NAMED_SAVES:]

    def record(self, spent_s: Mapping[str, float]) -> RankMeasures:
        """Everything so far; `spent_s`: seconds in each place."""
        device = self._activity.device
        while device is not None and device.step_s:
            self._count(device.step_s.pop())
        counts = list(self._counts)
        while counts and not counts[-1]:
            counts.pop()
        return RankMeasures(
            spent_s={place: round(seconds, 6) for place, seconds in spent_s.items() if seconds},
            step_counts=counts,
            steps_s=round(self._steps_s, 6),
            loss=self.loss,
            gradient_norm=self.gradient_norm,
            mfu=self.mfu,
            memory_bytes=psutil.Process().memory_info().rss,
            device_memory_bytes=None if self.device_memory is None else self.device_memory(),
            saves=self._saves,
            failed_saves=self._failed_saves,
            saving_s=round(self._saving_s, 6),
            newest_saves=self._newest_saves,
        )
