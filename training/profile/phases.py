"""A clock for the parts of a training step: each second belongs to the innermost part that is running.

The parts are entered around the documented methods of Lightning's strategies, so a module is timed as it is. On CUDA
the clock waits for the device at each border: kernels run behind the code that launches them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torch.distributed as dist

# What is none of the other parts: callbacks, logging, schedules.
BETWEEN = "callbacks"
# Method of the strategy → the part of a step that it is.
METHODS = {
    "batch_to_device": "transfer",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
}


class PhaseClock:
    """Seconds by part.

    Attributes:
        seconds: part → seconds of its own, since the last `restart`.
        names_in_trace: whether the parts are written into a trace that is being recorded.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, settle: Callable[[], None] | None = None
    ) -> None:
        self._clock, self._settle = clock, settle
        self._parts: list[tuple[str, Any]] = []
        self.seconds: dict[str, float] = defaultdict(float)
        self.names_in_trace = False
        self._since = clock()

    def restart(self) -> None:
        """Count from now on."""
        self._count()
        self.seconds = defaultdict(float)

    def enter(self, part: str) -> None:
        """A part begins, within the one that is running."""
        self._count()
        record = torch.profiler.record_function(f"trainwright: {part}") if self.names_in_trace else None
        if record is not None:
            record.__enter__()
        self._parts.append((part, record))

    def leave(self) -> None:
        """The part that began last ends."""
        self._count()
        _, record = self._parts.pop()
        if record is not None:
            record.__exit__(None, None, None)

    def now(self) -> float:
        """The time, once the device has done what it was given."""
        self._count()
        return self._since

    def _count(self) -> None:
        if self._settle is not None:
            self._settle()
        now = self._clock()
        self.seconds[self._parts[-1][0] if self._parts else BETWEEN] += now - self._since
        self._since = now

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call as a part, where this thread makes it."""
        mine = threading.get_ident()

        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != mine:
                return call(*args, **kwargs)
            self.enter(part)
            try:
                return call(*args, **kwargs)
            finally:
                self.leave()

        return timed


class ValidationClock(L.Callback):
    """Counts validation, which is no part of a step, as a part of its own."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation begins."""
        self._clock.enter("validation")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The steps continue."""
        self._clock.leave()


def time_parts(trainer: L.Trainer, clock: PhaseClock) -> None:
    """Time the methods of a Trainer's strategy, and this thread's waits for collectives."""
    for name, part in METHODS.items():
        setattr(trainer.strategy, name, clock.timed(part, getattr(trainer.strategy, name)))
    dist.Work.wait = clock.timed("synchronisation", dist.Work.wait)  # type: ignore[method-assign]
