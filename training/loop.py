"""Lightning's training loop with one place between two steps where nothing is half done.

There checkpoints are written, stops are answered and a resumed run takes up its generators, before the next batch is
fetched. Lightning itself saves inside a step's hooks and reconstructs on restart what was left to do; resuming from
this place needs none of that, so it is switched off.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from lightning.pytorch import Trainer
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

from training.validation import SharedValidation


class Between(Protocol):
    """What happens between two steps."""

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called on every rank before each micro-batch is fetched."""

    def passes_over(self, loop: StepLoop) -> bool:
        """Whether the next micro-batch is one that is not trained on."""

    def enter(self, place: str) -> None:
        """Called where the loop begins with something else."""

    def waited(self, seconds: float) -> None:
        """Called with the time that fetching a batch took."""


class StepLoop(_TrainingEpochLoop):
    """The loop over the micro-batches of an epoch."""

    def __init__(self, trainer: Trainer, between: Between) -> None:
        before = trainer.fit_loop.epoch_loop
        super().__init__(trainer, before.min_steps, before.max_steps)
        self._between = between
        if trainer.world_size > 1:
            self.val_loop = SharedValidation(trainer)
        self._fetching_since = 0.0

    def advance(self, data_fetcher: Any) -> None:
        """Take one micro-batch."""
        # Left set, it makes Lightning validate twice, skip validation or skip a plateau scheduler's step at the
        # end of the resumed epoch. The outer loop's setter would set it again for training by steps.
        self.restarting = False
        self.trainer.fit_loop._restarting = False
        self._between.between_steps(self, data_fetcher)
        if self._between.passes_over(self):
            self._pass_over(data_fetcher)
        else:
            super().advance(data_fetcher)

    def _pass_over(self, data_fetcher: Any) -> None:
        """Count a micro-batch, and move the schedules as for any other; no hook of the user's hears of it."""
        next(data_fetcher)
        progress = self.batch_progress
        progress.is_last_batch = data_fetcher.done
        progress.increment_ready()
        progress.increment_started()
        progress.increment_processed()
        self.update_lr_schedulers("step", update_plateau_schedulers=False)
        if self._num_ready_batches_reached():
            self.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        progress.increment_completed()

    def _broadcast_sigterm_tensor(self) -> None:
        # Lightning tells all ranks of a SIGTERM that rank 0 saw; between_steps does so for any rank.
        return

    def _on_before_fetch(self) -> None:
        self._fetching_since = time.monotonic()
        self._between.enter("fetching")

    def _on_after_fetch(self) -> None:
        self._between.enter("forward")
        self._between.waited(time.monotonic() - self._fetching_since)


def install(trainer: Trainer, between: Between) -> None:
    """Give a Trainer this loop in place of its own, and keep its hands off signals."""
    trainer.fit_loop.epoch_loop = StepLoop(trainer, between)
    # Its SIGTERM handler starts a collective from inside the signal; ours only sets a flag.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
