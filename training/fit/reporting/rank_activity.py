"""Where a rank is, and how much of its steps is its own work. A thread reports it, because a hung rank cannot.

A rank that hangs in its own work leaves all others waiting inside a collective, and a slow rank makes all others
equally slow. So only the time outside of collectives counts. A backward pass over several ranks mixes both (DDP
exchanges gradients inside it, out of sight), so it counts as neither.

With a GPU, the host's clock tells when work was queued. What counts there is the device's own times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from data_contracts.messages.ranks import PLACES
from training.fit.reporting.device_times import DeviceTimes

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
