"""Where a rank is, and how much of its steps is its own work. A thread reports it, because a hung rank cannot.

A rank that hangs in its own work leaves all others waiting inside a collective, and a slow rank makes all others
equally slow. So only the time outside of collectives counts. A backward pass over several ranks mixes both (DDP
exchanges gradients inside it, out of sight), so it counts as neither.

With a GPU, the host only queues work, so by its clock a step takes as long as queueing it: a slow device would look
fast, and a kernel that never ends would look like progress. What counts there are events that the device itself
records; reading them never waits for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from data_contracts.messages.gang import PLACES

# Places whose time is a rank's own work. The other places are: starting, between, backward, collective, checkpoint,
# validation, and hooks, where the user's code may take as long as it likes.
OWN = ("fetching", "forward", "stepping")
COLLECTIVE = "collective"


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
