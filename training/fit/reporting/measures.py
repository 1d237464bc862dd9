"""A rank's measures of its training, for people who watch it: lengths of steps, memory, checkpoints. Torch-free.

The main thread adds a few numbers per step and takes no lock. The thread that reports reads them.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping

from data_contracts.messages.gang import STEP_BOUNDS, RankMeasures, Saved
from training.fit.reporting.rank_activity import RankActivity

# More than are saved between two heartbeats.
NAMED_SAVES = 4


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
            memory_bytes=resident_bytes(),
            device_memory_bytes=None if self.device_memory is None else self.device_memory(),
            saves=self._saves,
            failed_saves=self._failed_saves,
            saving_s=round(self._saving_s, 6),
            newest_saves=self._newest_saves,
        )


def resident_bytes() -> int:
    """Memory of this process that is resident; 0 where the kernel does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
