"""Saves a training's checkpoints: the step waits only for a copy to host memory; a background thread does the rest."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch

from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Segment
from infra import audit
from infra.gang.rank_files import read_codes
from infra.gang.ranks import SAVED_WITHIN_S
from infra.store import Store, layout
from training.checkpoint.capture import Staging, capture
from training.checkpoint.saver import BackgroundWork, Place, save
from training.fit.history import History
from training.fit.launch_context import Context
from training.fit.machine_facts import machine_facts
from training.fit.reporting.reports import Reports
from training.order.rank_plan import Plan


class Saver:
    """One rank's part in saving; all ranks call it at the same steps.

    Attributes:
        last: the newest checkpoint that is sealed: written here or resumed from.
        step: the step of the newest checkpoint that was begun.
    """

    def __init__(self, context: Context, store: Store, reports: Reports, history: History, plan: Plan | None) -> None:
        self.last = context.resume
        self.step = self.last.step if self.last else 0
        self._context, self._store, self._reports = context, store, reports
        self._history, self._plan = history, plan
        self._staging = Staging()
        self._background = BackgroundWork()
        self._generations: list[dict[str, Any]] | None = None
        self._codes = read_codes(context.scratch)

    def meet(self) -> None:
        """Create the background thread's group. Collective; call it once the ranks have found each other."""
        self._background.meet(self._context.world_size)

    @property
    def failed(self) -> bool:
        """Whether saving the newest checkpoint failed; `wait` raises the cause."""
        return self._background.failed

    def wait(self) -> None:
        """Wait until the newest checkpoint is sealed; raises the cause if it could not be."""
        self._background.wait()

    def settle(self) -> None:
        """Let a pending checkpoint finish before the rank ends with another error: its steps are good."""
        self._background.settle(SAVED_WITHIN_S)

    def save(
        self,
        trainer: L.Trainer,
        state: dict[str, Any],
        own: dict[str, Any],
        metrics: Mapping[str, float],
        samples: int,
        held: dict[str, Any] | None = None,
    ) -> None:
        """Begin to save the state between two steps; only one save runs at a time.

        Args:
            state: Lightning's checkpoint dictionary; own: state of this rank alone.
            metrics: the newest values that are finite.
            held: the loss on a held batch, as `training.fit.reference_loss` records it.

        Raises: the cause if the checkpoint before it could not be saved.
        """
        context, step = self._context, trainer.global_step
        # The previous capture's staging buffers are reused.
        self._background.wait()
        taken = capture(state, own, context.rank, staging=self._staging)
        facts = {
            "step": step,
            "epoch": trainer.current_epoch,
            "world_size": context.world_size,
            "metrics": dict(metrics),
            "dropped_rows": self._plan.dropped_rows if self._plan else 0,
        }
        passed = [[first, end] for first, end in context.skip if end <= samples]
        skipped = {"skipped": passed} if passed else {}
        generations = self._generations_to(trainer.strategy.root_device)
        place = self._place(step, {**facts, "samples": samples, "held": held, **skipped}, generations)
        history = list(self._history.records)

        def work() -> None:
            with self._reports.saving(step):
                ref = save(place, taken, context.world_size, history, self._background.group)
            known = {"key": context.key, "training": context.training, "generation": context.generation}
            self.last = Checkpoint(ref=ref, **known, **facts, **skipped)
            if context.rank == 0:
                self._reports.sealed(self.last)

        self.step = step
        self._background.start(work)

    def _generations_to(self, device: torch.device) -> dict[str, Any]:
        """The part of the provenance that lists the generations up to here; {} on all ranks but the one that seals.

        Also {} where training resumed from a checkpoint without such a list, which an earlier Trainwright sealed.
        """
        context = self._context
        if context.rank != 0:
            return {}
        if self._generations is None:
            sealed = None if context.resume is None else self._store.manifest(context.resume.ref)
            earlier = [] if sealed is None else sealed.provenance.get("generations")
            held = sealed is not None and sealed.settings.get("held") is not None
            self._generations = [] if earlier is None else [*earlier, self._segment(device, held).to_json()]
        return {"generations": self._generations} if self._generations else {}

    def _segment(self, device: torch.device, held: bool) -> Segment:
        """This generation's own part of the training."""
        context, train = self._context, self._context.train
        return Segment(
            training=context.training,
            generation=context.generation,
            first_step=0 if context.resume is None else context.resume.step,
            resumed_from=None if context.resume is None else context.resume.ref.id,
            held=held,
            nodes=context.nodes,
            devices=context.devices,
            strategy=train.strategy,
            micro_batch=self._plan.micro_batch if self._plan else 0,
            shard_ranks=train.shard_ranks,
            skip=context.skip,
            facts=machine_facts(device),
        )

    def _code(self, uri: str, identity: str) -> dict[str, str]:
        """The code of a checkpoint with this id, for its provenance; see `infra.gang.rank_files`."""
        return self._codes.code(layout.manifest(uri), {"id": identity})

    def _place(self, step: int, settings: dict[str, Any], generations: dict[str, Any]) -> Place:
        context = self._context
        versions = {"python": platform.python_version(), "torch": torch.__version__, "lightning": L.__version__}
        return Place(
            store=self._store,
            uri=layout.checkpoint(context.training, step, context.generation),
            settings={**settings, "strategy": context.train.strategy},
            provenance={
                **context.provenance,
                "training": context.training,
                "generation": context.generation,
                "finished": audit.now(),
                "versions": versions,
                **generations,
            },
            sealed=context.sealed,
            scratch=context.scratch,
            code=self._code,
            on_wait=lambda error: self._reports.waits(error.message),
        )
