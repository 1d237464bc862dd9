"""Where a rank is, and how much of its steps is its own work. A thread reports it, because a hung rank cannot.

A rank that hangs in its own work leaves all others waiting inside a collective, and a slow rank makes all others
equally slow. So only the time outside of collectives counts. A backward pass over several ranks mixes both (DDP
exchanges gradients inside it, out of sight), so it counts as neither.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

# Places whose time is a rank's own work. The other places are: starting, between, backward, collective, checkpoint,
# validation, and hooks, where the user's code may take as long as it likes.
OWN = frozenset(("fetching", "forward", "stepping"))
COLLECTIVE = "collective"


class RankActivity:
    """One rank's place. Its main thread updates it and another thread reads it.

    Attributes:
        place: where it is now.
        moves: counts everything that gets done: micro-batches, batches of a validation, parts of a checkpoint.
        own_s: seconds of own work so far; steps: micro-batches so far.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.place = "starting"
        self.since = clock()
        self.moves = self.steps = 0
        self.own_s = 0.0

    def enter(self, place: str) -> None:
        """Set the place where the rank is from now on."""
        now = self._clock()
        if self.place in OWN:
            self.own_s += now - self.since
        self.since = now
        self.place = place

    def moved(self) -> None:
        """Count a piece of work that was done."""
        self.moves += 1

    def stepped(self) -> None:
        """Count a micro-batch that was trained on."""
        self.steps += 1
        self.moves += 1

    @property
    def place_s(self) -> float:
        """Seconds in this place."""
        return self._clock() - self.since


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
