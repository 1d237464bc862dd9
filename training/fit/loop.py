"""Lightning's training loop with one place between two steps where nothing is half done.

Before the next batch is fetched, checkpoints are written there, stop requests are answered, and a resumed run restores
its generators. Lightning itself saves inside a step's hooks and reconstructs the remaining work on restart. Resuming
from this place needs none of that, so it is switched off.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from lightning.pytorch import Trainer

from training.fit.validation import SharedValidation
from training.lightning_adapter import EpochLoop, install_epoch_loop


class Between(Protocol):
    """What happens between two steps."""

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called on every rank before each micro-batch is fetched."""

    def passes_over(self, loop: StepLoop) -> bool:
        """Whether the next micro-batch is skipped."""


class Observer(Protocol):
    """Receives where the loop is."""

    def enter(self, place: str) -> None:
        """Called when the loop enters another place."""

    def waited(self, seconds: float) -> None:
        """Called with the seconds that fetching a batch took."""


class StepLoop(EpochLoop):
    """The loop over the micro-batches of an epoch."""

    def __init__(self, trainer: Trainer, between: Between, observer: Observer) -> None:
        super().__init__(trainer, SharedValidation(trainer) if trainer.world_size > 1 else None)
        self._between, self._observer = between, observer
        self._fetching_since = 0.0

    def before_batch(self, fetcher: Any) -> bool:
        """Run the work between two steps; returns whether the next micro-batch is trained on."""
        self._between.between_steps(self, fetcher)
        return not self._between.passes_over(self)

    def around_fetch(self, *, fetched: bool) -> None:
        """Note where the rank is, and how long fetching took."""
        if not fetched:
            self._fetching_since = time.monotonic()
            self._observer.enter("fetching")
        else:
            self._observer.enter("forward")
            self._observer.waited(time.monotonic() - self._fetching_since)


def install(trainer: Trainer, between: Between, observer: Observer) -> None:
    """Replace a Trainer's loop with this one, and keep the Trainer from handling signals.

    Lightning's SIGTERM handler starts a collective inside the signal; ours only sets a flag.
    """
    install_epoch_loop(trainer, StepLoop(trainer, between, observer))
