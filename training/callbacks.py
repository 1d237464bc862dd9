"""The keeper of a training: what every rank does between two steps besides training.

It writes checkpoints when they are due, answers a stop with one checkpoint on all ranks, ends a training that
diverged, compares the replicas, restores a resumed run to the bit, and reports progress.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor

from data_contracts.errors import Diverged, Preempted, TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint
from infra.store import Store
from training.checkpoint.capture import capture
from training.checkpoint.rng import capture_rng, restore_rng, seed_rank
from training.checkpoint.save import read_history, read_rank_state
from training.checkpoint.state import UnsupportedState
from training.context import Context
from training.divergence import FINE, LOOK_EVERY, WORDS, LossWatch
from training.held import MOST_ROWS, record
from training.history import History, finite
from training.loader import Split, TrainLoader
from training.loop import StepLoop
from training.plan import Plan
from training.replicas import EVERY, compare
from training.reports import Reports
from training.running import capture_running, restore_running
from training.saver import Saver

log = logging.getLogger(__name__)

KEY = "trainwright"
# Of two ranks' flags the greater counts; what goes wrong with the loss (see `training.divergence`) stands above them.
GOES_ON, STOPPED, NOT_SAVED, WRONG = range(4)
# Rows that are named in the error itself; the rank's log has them all.
MOST_NAMED = 64


class Keeper(L.Callback):
    """One rank's keeper.

    Attributes:
        held_split: what the rows are taken from whose loss is recorded; None where our loader does not read it.
    """

    def __init__(
        self, context: Context, store: Store, reports: Reports, history: History, plan: Plan | None, resume: Path | None
    ) -> None:
        self._context = context
        self._saver = Saver(context, store, reports, history, plan)
        self._reports = reports
        self._history = history
        self._plan = plan
        self._resume = resume
        self._metrics: dict[str, Tensor] = {}
        self._fresh = True
        self._own_state: dict[str, Any] | None = None
        self._loss = LossWatch(context.train.global_batch_size, context.train.spike_factor)
        self._signalled = False
        self._flags: dist.ProcessGroup | None = None
        self._best: float | None = None
        self.held_split: Split | None = None

    @property
    def last(self) -> Checkpoint | None:
        """The newest checkpoint that is sealed: written here or resumed from."""
        return self._saver.last

    def listen(self) -> None:
        """Take SIGTERM as a request to stop: the flag is shared at the next step, whichever rank got it."""
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def enter(self, place: str) -> None:
        """Note where this rank is."""
        self._reports.where.enter(place)

    def passes_over(self, loop: StepLoop) -> bool:
        """Whether the next micro-batch is of those that are skipped."""
        loader = loop.trainer.train_dataloader
        return isinstance(loader, TrainLoader) and loader.passes_over

    def waited(self, seconds: float) -> None:
        """Count time spent fetching."""
        self._reports.waited(seconds)

    def waits(self, trainer: L.Trainer) -> dict[str, Any]:
        """Share of the training's time that was spent waiting for data, and what took longest in preparing it."""
        loader = trainer.train_dataloader
        spent = loader.spent if isinstance(loader, TrainLoader) else {"your loader": 1.0}
        cause = max(spent, key=lambda name: spent[name], default="")
        return {"wait_share": self._reports.wait_share, "wait_cause": cause}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Find out before step 1 whether all state can be saved."""
        try:
            capture(self._dump(trainer), self._own(trainer), trainer.global_rank, dry=True)
        except UnsupportedState as error:
            raise UsageError(
                f"{error.path} is a {error.kind}, which a checkpoint cannot hold: it takes tensors and plain values.",
                remedy="Keep it out of the saved state, or make it tensors, numbers, texts, lists or dictionaries.",
            ) from error
        self._saver.meet()
        if trainer.world_size > 1:
            # Of gloo on a GPU too: reading a flag from the device would wait for the step.
            limit = timedelta(seconds=self._context.train.collective_timeout_s)
            self._flags = dist.new_group(backend="gloo", timeout=limit)
        self._check_batch_size(trainer)
        self._reports.begin()
        self._reports.report(now=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss, and that a micro-batch is done."""
        self._loss.take(outputs)
        self._reports.where.stepped()
        self.enter("between")

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """With several ranks, the backward pass is where they wait for each other."""
        if trainer.world_size > 1:
            self.enter("backward")

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """What follows is this rank's own again."""
        self.enter("stepping")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Validation begins; its first batch may have to be compiled."""
        self.enter("hooks")

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        """A batch of it is done."""
        self._reports.where.moved()
        self.enter("validation")

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The user's hooks follow."""
        self.enter("hooks")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The user's hooks follow."""
        self.enter("hooks")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The user's hooks follow."""
        self.enter("hooks")

    def between_steps(self, loop: StepLoop, fetcher: Any) -> None:
        """Called on every rank before each micro-batch."""
        trainer = loop.trainer
        if self._fresh:
            self._fresh = False
            self._begin(trainer, loop, fetcher)
        done = loop.batch_progress.current.ready
        if done % trainer.accumulate_grad_batches:
            return
        due = self._due(trainer, epoch_begins=done == 0)
        flag = self._agree(trainer, saving=due)
        if due or flag == STOPPED:
            self._save(trainer, wait=flag == STOPPED)
        if flag == STOPPED:
            raise Preempted(f"Rank {trainer.global_rank} was asked to stop at step {trainer.global_step}.")
        self._progress(trainer)

    def finish(self, trainer: L.Trainer) -> None:
        """The last step always has a checkpoint; called once no hook of the user's is left to run."""
        self._agree(trainer, saving=True)
        self._save(trainer, wait=True)
        self._progress(trainer)
        self.enter("hooks")

    def settle(self) -> None:
        """Let a checkpoint that is on its way arrive, before this rank ends."""
        self._saver.settle()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add what a resumed run needs and Lightning does not save."""
        self._metrics |= {name: value for name, value in trainer.callback_metrics.items() if isinstance(value, Tensor)}
        checkpoint[KEY] = {
            "accumulate": trainer.accumulate_grad_batches,
            "metrics": dict(sorted(self._metrics.items())),
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Restore it; Lightning counts micro-batches, of which another number of ranks takes more or fewer."""
        context, kept = self._context, checkpoint[KEY]
        self._metrics = dict(kept["metrics"])
        trainer._logger_connector._callback_metrics.update(self._metrics)
        if trainer.is_global_zero and self._resume is not None:
            self._history.records[:] = read_history(self._resume)
        fit_loop = checkpoint["loops"]["fit_loop"]
        if self._resume is not None and context.resume is not None and context.resume.world_size == context.world_size:
            self._own_state = read_rank_state(self._resume, context.rank)
        if self._own_state and "loaders" in self._own_state:
            fit_loop["state_dict"]["combined_loader"] = self._own_state["loaders"]
        progress = fit_loop["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            for name in counts:
                counts[name] = counts[name] // kept["accumulate"] * trainer.accumulate_grad_batches

    def _begin(self, trainer: L.Trainer, loop: StepLoop, fetcher: Any) -> None:
        context = self._context
        if self._resume is None or context.resume is None:
            # One seed for all made equal replicas; from here on each rank draws its own dropout masks.
            seed_rank(context.train.seed, 0, context.rank)
            return
        done = loop.batch_progress.current.ready
        loaders = trainer.fit_loop._combined_loader
        assert loaders is not None
        if done and not all(hasattr(loader, "load_state_dict") for loader in loaders.flattened):
            # A loader without a position begins its epoch anew; Lightning has counted these batches already.
            fetcher.fetched -= done
            for _ in range(done):
                next(fetcher)
        self._loss.begin(self._samples(trainer))
        if self._own_state is None:
            seed_rank(context.train.seed, context.resume.step, context.rank)
        else:
            restore_rng(self._own_state["rng"])
            restore_running(trainer, self._own_state["running"])

    def _due(self, trainer: L.Trainer, *, epoch_begins: bool) -> bool:
        step, last = trainer.global_step, self._saver.step
        every = self._context.train.checkpoint.every_steps
        return step > last and (epoch_begins if every is None else step // every > last // every)

    def _agree(self, trainer: L.Trainer, *, saving: bool) -> int:
        """The most urgent flag of any rank; what is saved must be finite in its weights too, not only in its loss.

        Raises Diverged if a rank saw a value that is not, and why a checkpoint could not be saved behind the steps.
        """
        flag = STOPPED if self._signalled or self._reports.stop_asked else GOES_ON
        flag = NOT_SAVED if self._saver.failed else flag
        look = saving or trainer.strategy.root_device.type == "cpu" or trainer.global_step % LOOK_EVERY == 0
        finding = self._loss.look(trainer.lightning_module, weights=saving) if look else FINE
        flag = flag if finding == FINE else WRONG + finding
        if trainer.world_size > 1:
            shared = torch.tensor(flag)
            dist.all_reduce(shared, dist.ReduceOp.MAX, group=self._flags)
            flag = int(shared)
        if flag == STOPPED and not saving:
            # Not every rank knew; now all look at what is to be saved.
            return self._agree(trainer, saving=True)
        if flag == NOT_SAVED:
            self._saver.wait()
        samples = self._samples(trainer)
        if flag > WRONG:
            raise self._diverged(trainer, flag - WRONG, samples)
        if look:
            self._loss.fine(samples, weights=saving)
        shards = getattr(trainer.strategy, "shards", 1)
        if trainer.world_size > shards and (saving or trainer.global_step % EVERY == 0):
            device, step = trainer.strategy.root_device, trainer.global_step
            compare(trainer.lightning_module, device, trainer.world_size, step, shards=shards)
        return flag

    def _save(self, trainer: L.Trainer, *, wait: bool = False) -> None:
        saver = self._saver
        self.enter("checkpoint")
        if saver.step != trainer.global_step:
            state, own = self._dump(trainer), self._own(trainer)
            held = self._held(trainer) if self._may_be_chosen(last=wait) else None
            saver.save(trainer, state, own, self._metrics, self._samples(trainer), held)
        if wait:
            saver.wait()
        self.enter("between")

    def _may_be_chosen(self, *, last: bool) -> bool:
        """Whether train may hand this checkpoint over: the last one, or the best so far by `train.select`."""
        select = self._context.train.select
        value = finite(self._metrics).get(select.metric) if select else None
        if select is None or value is None:
            return last
        best = self._best if self._best is not None else value
        better = value <= best if select.mode == "min" else value >= best
        self._best = value if better else best
        return better or last

    def _held(self, trainer: L.Trainer) -> dict[str, Any] | None:
        if self.held_split is None or self._plan is None:
            return None
        rows, sharded = min(MOST_ROWS, self._plan.micro_batch), self._context.train.sharded
        batch = functools.partial(self.held_split.take, slice(0, rows))
        return record(trainer.lightning_module, batch, trainer, sharded=sharded, rows=rows)

    def _check_batch_size(self, trainer: L.Trainer) -> None:
        """Say so if the user's own loader takes another batch than the spec plans with."""
        size = getattr(trainer.train_dataloader, "batch_size", None)
        wanted = self._context.train.global_batch_size // self._context.world_size
        if self._plan is None and isinstance(size, int) and size != wanted and trainer.is_global_zero:
            log.warning(
                "The data module's batch size is %d, but train.global_batch_size %d on %d ranks means %d; "
                "steps and samples are counted as the spec has them.",
                *(size, self._context.train.global_batch_size, self._context.world_size, wanted),
            )

    def _dump(self, trainer: L.Trainer) -> dict[str, Any]:
        return trainer._checkpoint_connector.dump_checkpoint(weights_only=False)

    def _own(self, trainer: L.Trainer) -> dict[str, Any]:
        own: dict[str, Any] = {"rng": capture_rng(), "running": capture_running(trainer)}
        loaders = trainer.fit_loop._combined_loader
        if self._plan is None and loaders is not None:
            # A loader of the user's may read its rank's share alone, and stand elsewhere than rank 0's.
            own["loaders"] = loaders._state_dicts()
        return own

    def _progress(self, trainer: L.Trainer) -> None:
        progress = self._reports.progress
        progress.step = trainer.global_step
        progress.epoch = trainer.fit_loop.epoch_progress.current.completed
        progress.samples = self._samples(trainer)
        if self._reports.is_due:
            progress.metrics = finite(trainer.callback_metrics)
            self._reports.report()

    def _samples(self, trainer: L.Trainer) -> int:
        loader = trainer.train_dataloader
        if isinstance(loader, TrainLoader):
            return loader.samples
        return trainer.global_step * self._context.train.global_batch_size

    def _diverged(self, trainer: L.Trainer, finding: int, samples: int) -> Diverged:
        step, since = trainer.global_step, self._loss.since(finding, samples)
        details: dict[str, Any] = {"step": step, "samples": [since, samples]}
        where = f"at step {step} (epoch {trainer.current_epoch}), after samples {since:,} to {samples:,}"
        said = f"{WORDS[finding]} {where}."
        loader = trainer.train_dataloader
        if not isinstance(loader, TrainLoader):
            return Diverged(said, details=details)
        rows = loader.rows(since, samples)
        log.warning("the samples %d to %d, which may have done it, are rows %s", since, samples, rows.tolist())
        details |= {"rows": rows[:MOST_NAMED].tolist()}
        loader.close()
        with contextlib.suppress(TrainwrightError):  # such as a store that is away: the loss is the cause all the same
            if missing := loader.split.without_numbers(rows):
                named = ", ".join(f"{name} in {count}" for name, count in missing.items())
                return Diverged(
                    f"{said} Of their {len(rows):,} rows some hold no number (missing, NaN or infinite): {named}.",
                    remedy="Fill them or drop the rows in shards.transform, or fill them in train.transform.",
                    details=details,
                )
        return Diverged(said, details=details)

    def _on_sigterm(self, *_: Any) -> None:
        self._signalled = True


def plan_json(plan: Plan | None) -> dict[str, Any]:
    """The plan as a rank reports it; with the user's own loader only that nothing is known to be dropped."""
    return asdict(plan) if plan else {"dropped_rows": 0}
