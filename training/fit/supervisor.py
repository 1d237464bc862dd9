"""The supervisor of a training: does what every rank has to do between two steps, besides training.

It connects the parts: the cadence of checkpoints, the ranks' agreement, the checks of the loss and the replicas, and
restoring a resumed run.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import lightning as L

from data_contracts.errors import Preempted
from data_contracts.handoffs import Checkpoint
from infra.store import Store
from training.fit.agreement import CONTINUE, DUE, NOT_SAVED, STOP, WRONG, Agreement
from training.fit.cadence import Cadence
from training.fit.checkpoint_saver import Saver
from training.fit.divergence import FINE, LOOK_EVERY, LossWatch, diverged
from training.fit.history import History, finite
from training.fit.launch_context import Context
from training.fit.loop import StepLoop
from training.fit.preflight import check_checkpoint_size, try_capture, warn_of_batch_size
from training.fit.reference_loss import MOST_ROWS, record
from training.fit.replica_check import EVERY, compare
from training.fit.reporting.activity_callback import ActivityCallback
from training.fit.reporting.measuring import Measuring
from training.fit.reporting.reports import Reports
from training.fit.resume import Resume, samples_done
from training.fit.validated_weights import ValidatedWeights
from training.lightning_adapter import dump_checkpoint, saved_positions
from training.loader import Split, TrainLoader
from training.loader.view import loader_of
from training.order.rank_plan import Plan

# Steps that are so long that none is looked at for this time are waited for: they are reported, at no cost that shows.
READ_EVERY_S = 30.0


class Supervisor(L.Callback):
    """One rank's supervisor.

    Attributes:
        activity: the callback that notes where the rank is; comes after this one. measuring: the one that measures.
        validated: the one that knows which weights were validated.
        held_split: the split whose first rows give the recorded loss; None where our loader does not read it.
        loader: our loader; None where the user's code has its own.
    """

    def __init__(
        self, context: Context, store: Store, reports: Reports, history: History, plan: Plan | None, resume: Path | None
    ) -> None:
        self.activity = ActivityCallback(reports)
        self.measuring = Measuring(reports)
        self.held_split: Split | None = None
        self.loader: TrainLoader | None = None
        self._context, self._reports, self._plan = context, reports, plan
        self._saver = Saver(context, store, reports, history, plan)
        self._cadence = Cadence(context.train)
        self._agreement = Agreement(context.train.collective_timeout_s)
        self.validated = ValidatedWeights(context.train.select, self._agreement)
        self._loss = LossWatch(context.train.global_batch_size, context.train.spike_factor)
        samples = 0 if context.resume is None else store.manifest(context.resume.ref).settings["samples"]
        self._resume = Resume(context, history, plan is None, resume, samples)
        self._begun = False
        # Whether this look between two steps has waited for the device, and when its values were last read.
        self._looked, self._read_at = False, 0.0

    @property
    def last(self) -> Checkpoint | None:
        """The newest checkpoint that is sealed: written here or resumed from."""
        return self._saver.last

    def listen(self) -> None:
        """Take SIGTERM as a request to stop."""
        self._agreement.listen()

    def passes_over(self, loop: StepLoop) -> bool:
        """Whether the next micro-batch is skipped."""
        loader = loader_of(loop.trainer)
        return loader is not None and loader.passes_over

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check before step 1 that all state can be saved."""
        taken = try_capture(dump_checkpoint(trainer), self._resume.rank_state(trainer), trainer.global_rank)
        self._saver.meet()
        self._agreement.meet(trainer.world_size)
        check_checkpoint_size(taken, trainer.optimizers, self._agreement)
        if self._plan is None:
            warn_of_batch_size(trainer, self._context)
        self._reports.begin()
        self._reports.report(now=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss."""
        self._loss.take(outputs)

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Run on every rank before each micro-batch: save, check and stop as the ranks agree.

        Raises Preempted, with a checkpoint sealed, if any rank was asked to stop.
        """
        trainer, done = loop.trainer, loop.batches_done
        if not self._begun:
            self._begun = True
            # Again, because hooks of the module that ran since then may have made more state.
            try_capture(dump_checkpoint(trainer), self._resume.rank_state(trainer), trainer.global_rank)
            if self._resume.begin(trainer, fetcher, done):
                self._loss.begin(self._samples(trainer))
            self._cadence.begin()
        if done % trainer.accumulate_grad_batches:
            return
        step, measured = trainer.global_step, self.validated.step == trainer.global_step
        due = self._cadence.is_due(step, self._saver.step, epoch_begins=done == 0, measured=measured)
        planned = self._context.stop if self._stops_here(trainer) else None
        self._looked = False
        flag = self._agree(trainer, saving=due or planned is not None)
        if due or flag in (DUE, STOP):
            clocked = flag == DUE and not due
            self._save(trainer, last=planned is None or planned.may_be_last, wait=flag == STOP, clocked=clocked)
        if flag == STOP:
            raise Preempted(f"Rank {trainer.global_rank} was asked to stop at step {trainer.global_step}.")
        self._progress(trainer)

    def finish(self, trainer: L.Trainer) -> None:
        """Save the last step's checkpoint; called after all hooks of the user's."""
        self._agree(trainer, saving=True)
        self._save(trainer, wait=True)
        self._progress(trainer)
        self.activity.enter("hooks")

    def settle(self) -> None:
        """Let a checkpoint that is being saved finish, before this rank ends."""
        self._saver.settle()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the state that a resumed run needs and Lightning does not save."""
        self._resume.add_to(checkpoint, trainer)

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Read the added state, before Lightning restores the rest."""
        self._resume.read(checkpoint, trainer)
        # Lightning does so only where the checkpoint was made within an epoch.
        if self.loader is not None:
            self.loader.load_state_dict(*saved_positions(checkpoint))

    def _agree(self, trainer: L.Trainer, *, saving: bool) -> int:
        """The most urgent flag of any rank. A checkpoint needs finite weights, not only a finite loss.

        Raises Diverged if a rank saw a value that is not finite, and the cause if a background save failed.
        """
        look = saving or trainer.strategy.root_device.type == "cpu" or trainer.global_step % LOOK_EVERY == 0
        finding = self._loss.look(trainer.lightning_module, weights=saving) if look else FINE
        self._looked |= look
        flag = self._agreement.most_urgent(self._own_flag(trainer) if finding == FINE else WRONG + finding)
        if flag in (DUE, STOP) and not saving:
            # Until here, not all ranks knew that a checkpoint is due; now all check the state to be saved.
            return self._agree(trainer, saving=True)
        if flag == NOT_SAVED:
            self._saver.wait()
        samples = self._samples(trainer)
        if flag > WRONG:
            raise diverged(trainer, flag - WRONG, self._loss.since(flag - WRONG, samples), samples)
        if look:
            self._loss.fine(samples, weights=saving)
        shards = getattr(trainer.strategy, "shards", 1)
        if trainer.world_size > shards and (saving or trainer.global_step % EVERY == 0):
            device, step = trainer.strategy.root_device, trainer.global_step
            compare(trainer.lightning_module, device, trainer.world_size, step, shards=shards)
        return flag

    def _own_flag(self, trainer: L.Trainer) -> int:
        if self._saver.failed:
            return NOT_SAVED
        asked = self._agreement.stop_signalled or self._reports.stop_asked
        if asked or self._stops_here(trainer):
            return STOP
        return DUE if self._cadence.is_time(trainer.global_step, self._saver.step) else CONTINUE

    def _stops_here(self, trainer: L.Trainer) -> bool:
        """Whether this generation is to end after the step that was done."""
        return self._context.stop is not None and trainer.global_step >= self._context.stop.step

    def _save(self, trainer: L.Trainer, *, wait: bool = False, last: bool = True, clocked: bool = False) -> None:
        saver, resume, began = self._saver, self._resume, time.monotonic()
        self.activity.enter("checkpoint")
        if saver.step != trainer.global_step:
            state, own = dump_checkpoint(trainer), resume.rank_state(trainer)
            metrics = finite(resume.metrics)
            if clocked or not self.validated.are_in(state["state_dict"], trainer):
                metrics = self._cadence.unchosen(metrics)
            chosen = not clocked and self._cadence.may_be_chosen(metrics, last=wait and last)
            held = self._held_loss(trainer, state["state_dict"]) if chosen else None
            saver.save(trainer, state, own, metrics, self._samples(trainer), held)
            self._cadence.begin()
        if wait:
            saver.wait()
        else:
            self._reports.stalled(time.monotonic() - began)
        self.activity.enter("between")

    def _held_loss(self, trainer: L.Trainer, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        if self.held_split is None or self._plan is None:
            return None
        rows, sharded = min(MOST_ROWS, self._plan.micro_batch), self._context.train.sharded
        batch = functools.partial(self.held_split.take, slice(0, rows))
        module = trainer.lightning_module
        return record(module, batch, trainer, sharded=sharded, rows=rows, state_dict=state_dict)

    def _progress(self, trainer: L.Trainer) -> None:
        progress = self._reports.progress
        progress.step = trainer.global_step
        progress.epoch = trainer.current_epoch
        progress.samples = self._samples(trainer)
        self._reports.measures.step()
        # To read a value is to wait for the device, unless that was done just now.
        if self._reports.is_due and (self._looked or time.monotonic() - self._read_at > READ_EVERY_S):
            self._read_at = time.monotonic()
            self.measuring.read(trainer)
            progress.metrics = finite(trainer.callback_metrics)
            self._reports.report()

    def _samples(self, trainer: L.Trainer) -> int:
        return samples_done(trainer, self._context.train.global_batch_size)
