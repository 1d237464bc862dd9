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

from data_contracts.messages.ranks import PLACES

# Places whose time is a rank's own work. The other places are: starting, between, backward, collective, checkpoint,
# validation, and hooks, where the user's code may take as long as it likes.
OWN = ("fetching", "forward", "stepping")
COLLECTIVE = "collective"


class RankActivity:
    """One rank's place. Its main thread updates it and another thread reads it.

    Attributes:
        place: where it is now.
        moves: counts everything that gets done: micro-batches, batches of a validation, parts of a checkpoint.
        spent_s: seconds in each place so far, without the present stay.
        steps: micro-batches so far; stepped_at: when the newest was done.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.place = "starting"
        self.since = clock()
        self.moves = self.steps = 0
        self.stepped_at = self.since
        self.spent_s = dict.fromkeys(PLACES, 0.0)

    def enter(self, place: str) -> None:
        """Set the place where the rank is from now on."""
        now = self._clock()
        self.spent_s[self.place] += now - self.since
        self.since = now
        self.place = place

    def moved(self) -> None:
        """Count a piece of work that was done."""
        self.moves += 1

    def stepped(self) -> None:
        """Count a micro-batch that was trained on."""
        self.steps += 1
        self.moves += 1
        self.stepped_at = self._clock()

    @property
    def own_s(self) -> float:
        """Seconds of own work so far."""
        return sum(self.spent_s[place] for place in OWN)

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
