"""Saves a training's checkpoints: a copy to host memory that the step waits for, the rest behind the steps."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch

from data_contracts.handoffs import Checkpoint
from infra import audit
from infra.launch.ranks import SAVED_WITHIN_S
from infra.store import Store, layout
from training.checkpoint.behind import Behind
from training.checkpoint.capture import Staging, capture
from training.checkpoint.save import Place, save
from training.context import Context
from training.history import History, finite
from training.plan import Plan
from training.reports import Reports


class Saver:
    """One rank's part in saving; all ranks call it at the same steps.

    Attributes:
        last: the newest checkpoint that is sealed: written here or resumed from.
        step: of the newest one begun.
    """

    def __init__(self, context: Context, store: Store, reports: Reports, history: History, plan: Plan | None) -> None:
        self.last = context.resume
        self.step = self.last.step if self.last else 0
        self._context, self._store, self._reports = context, store, reports
        self._history, self._plan = history, plan
        self._staging = Staging()
        self._behind = Behind()

    def meet(self) -> None:
        """Collective, once the ranks have found each other."""
        self._behind.meet(self._context.world_size)

    @property
    def failed(self) -> bool:
        """Whether the newest checkpoint could not be saved; `wait` raises why."""
        return self._behind.failed

    def wait(self) -> None:
        """Wait until the newest checkpoint is sealed; raises why it could not be."""
        self._behind.wait()

    def settle(self) -> None:
        """Before the end because of another error: what is on its way is of good steps, so it may arrive."""
        self._behind.settle(SAVED_WITHIN_S)

    def save(
        self,
        trainer: L.Trainer,
        state: dict[str, Any],
        own: dict[str, Any],
        metrics: Mapping[str, torch.Tensor],
        samples: int,
        held: dict[str, Any] | None = None,
    ) -> None:
        """Begin to save the state between two steps; one is on its way at a time.

        Args:
            state: Lightning's checkpoint dictionary; own: state of this rank alone.
            held: the loss on a held batch, as `training.held` records it.

        Raises: why the checkpoint before it could not be saved.
        """
        context, step = self._context, trainer.global_step
        # What it was captured into is used again.
        self._behind.wait()
        taken = capture(state, own, context.rank, staging=self._staging)
        facts = {
            "step": step,
            "epoch": trainer.fit_loop.epoch_progress.current.completed,
            "world_size": context.world_size,
            "metrics": finite(metrics),
            "dropped_rows": self._plan.dropped_rows if self._plan else 0,
        }
        passed = [[first, end] for first, end in context.skip if end <= samples]
        skipped = {"skipped": passed} if passed else {}
        place = Place(
            store=self._store,
            uri=layout.checkpoint(context.training, step, context.generation),
            settings={**facts, "strategy": context.train.strategy, "samples": samples, "held": held, **skipped},
            provenance={
                **context.provenance,
                "training": context.training,
                "generation": context.generation,
                "finished": audit.now(),
                "versions": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "lightning": L.__version__,
                },
            },
            sealed=context.sealed,
            scratch=context.scratch,
            on_wait=lambda error: self._reports.waits(error.message),
        )
        history = list(self._history.records)

        def work() -> None:
            self._reports.saving(True)
            try:
                ref = save(place, taken, context.world_size, history, self._behind.group)
            finally:
                self._reports.saving(False)
            known = {"key": context.key, "training": context.training, "generation": context.generation}
            self.last = Checkpoint(ref=ref, **known, **facts, **skipped)
            if context.rank == 0:
                self._reports.sealed(self.last)

        self.step = step
        self._behind.start(work)
