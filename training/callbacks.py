"""The keeper of a training: what every rank does between two steps besides training.

It writes checkpoints when they are due, answers a stop with one checkpoint on all ranks, ends a training that
diverged, restores a resumed run to the bit, and reports progress.
"""

from __future__ import annotations

import logging
import platform
import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from data_contracts.errors import Diverged, Preempted, UsageError
from data_contracts.handoffs import Checkpoint
from infra.store import Store, layout
from training.checkpoint.capture import capture
from training.checkpoint.rng import capture_rng, restore_rng, seed_rank
from training.checkpoint.save import Place, read_history, read_rank_state, save
from training.checkpoint.state import UnsupportedState
from training.context import Context
from training.history import History, finite
from training.loader import TrainLoader
from training.loop import StepLoop
from training.plan import Plan
from training.reports import Reports
from training.running import capture_running, restore_running

log = logging.getLogger(__name__)

KEY = "trainwright"
# Of two ranks' flags the greater counts: a loss that is no number says nearer than a weight which batch it was.
GOES_ON, STOPPED, BAD_WEIGHT, BAD_LOSS = range(4)
# On a GPU looking at the loss waits for the step; the look is put off to every so many steps and to each checkpoint.
LOOK_EVERY = 16


class Keeper(L.Callback):
    """One rank's keeper.

    Attributes:
        last: the newest checkpoint: written here or resumed from.
    """

    def __init__(
        self, context: Context, store: Store, reports: Reports, history: History, plan: Plan | None, resume: Path | None
    ) -> None:
        self.last = context.resume
        self._context = context
        self._store = store
        self._reports = reports
        self._history = history
        self._plan = plan
        self._resume = resume
        self._metrics: dict[str, Tensor] = {}
        self._fresh = True
        self._own_state: dict[str, Any] | None = None
        self._finite: Tensor | None = None
        # Samples consumed when the loss, and when the weights, were last seen to be finite.
        self._seen = {BAD_LOSS: 0, BAD_WEIGHT: 0}
        self._signalled = False

    def listen(self) -> None:
        """Take SIGTERM as a request to stop: the flag is shared at the next step, whichever rank got it."""
        signal.signal(signal.SIGTERM, self._on_sigterm)

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
        self._check_batch_size(trainer)
        self._reports.begin()
        self._reports.report(now=True)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember whether the loss is still a number."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            fine = torch.isfinite(loss.detach()).all()
            self._finite = fine if self._finite is None else self._finite & fine

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
            self._save(trainer)
        if flag == STOPPED:
            raise Preempted(f"Rank {trainer.global_rank} was asked to stop at step {trainer.global_step}.")
        self._progress(trainer)

    def finish(self, trainer: L.Trainer) -> None:
        """The last step always has a checkpoint; called once no hook of the user's is left to run."""
        self._agree(trainer, saving=True)
        self._save(trainer)
        self._progress(trainer)

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
        self._seen = dict.fromkeys(self._seen, self._samples(trainer))
        if self._own_state is None:
            seed_rank(context.train.seed, context.resume.step, context.rank)
        else:
            restore_rng(self._own_state["rng"])
            restore_running(trainer, self._own_state["running"])

    def _due(self, trainer: L.Trainer, *, epoch_begins: bool) -> bool:
        step, last = trainer.global_step, self.last.step if self.last else 0
        every = self._context.train.checkpoint.every_steps
        return step > last and (epoch_begins if every is None else step // every > last // every)

    def _agree(self, trainer: L.Trainer, *, saving: bool) -> int:
        """The most urgent flag of any rank; what is saved must be finite in its weights too, not only in its loss.

        Raises Diverged if a rank saw a value that is not.
        """
        flag = STOPPED if self._signalled or self._reports.stop_asked else GOES_ON
        saving = saving or flag == STOPPED
        look = saving or trainer.strategy.root_device.type == "cpu" or trainer.global_step % LOOK_EVERY == 0
        if saving and not _weights_are_finite(trainer.lightning_module):
            flag = BAD_WEIGHT
        if look and self._finite is not None and not bool(self._finite):
            flag = BAD_LOSS
        if trainer.world_size > 1:
            shared = torch.tensor(flag, device=trainer.strategy.root_device)
            dist.all_reduce(shared, dist.ReduceOp.MAX)
            flag = int(shared)
        if flag in self._seen:
            raise self._diverged(trainer, since=self._seen[flag])
        if look:
            self._seen[BAD_LOSS] = self._samples(trainer)
        if saving:
            self._seen[BAD_WEIGHT] = self._samples(trainer)
        return flag

    def _save(self, trainer: L.Trainer) -> None:
        if self.last is not None and self.last.step == trainer.global_step:
            return
        context, step = self._context, trainer.global_step
        taken = capture(self._dump(trainer), self._own(trainer), trainer.global_rank)
        metrics = finite(self._metrics)
        epoch = trainer.fit_loop.epoch_progress.current.completed
        facts = {
            "step": step,
            "epoch": epoch,
            "world_size": context.world_size,
            "metrics": metrics,
            "dropped_rows": self._plan.dropped_rows if self._plan else 0,
        }
        place = Place(
            store=self._store,
            uri=layout.checkpoint(context.training, step, context.generation),
            settings={**facts, "strategy": context.train.strategy, "samples": self._samples(trainer)},
            provenance={
                **context.provenance,
                "training": context.training,
                "generation": context.generation,
                "versions": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "lightning": L.__version__,
                },
            },
            sealed=context.sealed,
            scratch=context.scratch,
        )
        ref = save(place, taken, context.world_size, list(self._history.records))
        self.last = Checkpoint(
            ref=ref, key=context.key, training=context.training, generation=context.generation, **facts
        )
        if trainer.is_global_zero:
            self._reports.sealed(self.last)

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

    def _diverged(self, trainer: L.Trainer, since: int) -> Diverged:
        step = trainer.global_step
        return Diverged(
            f"The loss or a weight is not a finite number at step {step} (epoch {trainer.current_epoch}).",
            details={"step": step, "samples": [since, self._samples(trainer)]},
        )

    def _on_sigterm(self, *_: Any) -> None:
        self._signalled = True


def _weights_are_finite(module: L.LightningModule) -> bool:
    """Parameters alone: a buffer may well hold an infinity, such as a causal mask."""
    local = [p.to_local() if isinstance(p, DTensor) else p for p in (each.detach() for each in module.parameters())]
    return all(bool(torch.isfinite(part).all()) for part in local)


def plan_json(plan: Plan | None) -> dict[str, Any]:
    """The plan as a rank reports it; with the user's own loader only that nothing is known to be dropped."""
    return asdict(plan) if plan else {"dropped_rows": 0}
