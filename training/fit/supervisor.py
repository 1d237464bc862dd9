"""The supervisor of a training: does what every rank has to do between two steps, besides training.

It connects the parts: when a checkpoint is due, the ranks' agreement, the checks of the loss and the replicas, and
restoring a resumed run. It saves the checkpoints: the step waits only for a copy to host memory; a background thread
does the rest. Each is sealed with the facts of this machine and its libraries that decide the bits of a training.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch

from data_contracts.errors import Preempted
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import MachineFacts, Segment
from data_contracts.pipeline_spec import TrainSpec
from infra import audit
from infra.gang.rank_files import read_codes
from infra.gang.ranks import SAVED_WITHIN_S
from infra.store import Store, layout
from training.checkpoint.saver import BackgroundWork, CheckpointTarget, Staging, capture, save
from training.fit.guards import (
    CONTINUE,
    DUE,
    EVERY,
    FINE,
    LOOK_EVERY,
    NOT_SAVED,
    STOP,
    WRONG,
    Agreement,
    LossWatch,
    ValidatedWeights,
    compare,
    diverged,
    try_capture,
    warn_of_batch_size,
)
from training.fit.launch_context import Context
from training.fit.loop import StepLoop
from training.fit.measuring import ActivityCallback, History, Measuring, finite
from training.fit.reference_loss import MOST_ROWS, record
from training.fit.reports import Reports
from training.fit.resume import Resume, samples_done
from training.lightning_adapter import dump_checkpoint, saved_positions
from training.loader import Split, TrainLoader
from training.loader.loaders import loader_of
from training.order import Plan

# Steps that are so long that none is looked at for this time are waited for: they are reported, at no cost that shows.
READ_EVERY_S = 30.0
_CPU_INFO = Path("/proc/cpuinfo")


class Supervisor(L.Callback):
    """One rank's supervisor.

    Attributes:
        activity: the callback that notes where the rank is; comes after this one. measuring: the one that measures.
        validated: the one that knows which weights were validated.
        saver: this rank's part in saving; agreement: in what all ranks agree on.
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
        self.saver = Saver(context, store, reports, history, plan)
        self._cadence = Cadence(context.train)
        self.agreement = Agreement(context.train.collective_timeout_s)
        self.validated = ValidatedWeights(context.train.select, self.agreement)
        self._loss = LossWatch(context.train.global_batch_size, context.train.spike_factor)
        samples = 0 if context.resume is None else store.manifest(context.resume.ref).settings["samples"]
        self._resume = Resume(context, history, plan is None, resume, samples)
        self._begun = False
        # Whether this look between two steps has waited for the device, and when its values were last read.
        self._looked, self._read_at = False, 0.0

    def passes_over(self, loop: StepLoop) -> bool:
        """Whether the next micro-batch is skipped."""
        loader = loader_of(loop.trainer)
        return loader is not None and loader.passes_over

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check before step 1 that all state can be saved."""
        try_capture(dump_checkpoint(trainer), self._resume.rank_state(trainer), trainer.global_rank)
        self.saver.background.meet(trainer.world_size)
        self.agreement.meet(trainer.world_size)
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
                self._loss.fine(self._samples(trainer), weights=True)  # those of a checkpoint are finite
            self._cadence.begin()
        if done % trainer.accumulate_grad_batches:
            return
        step, measured = trainer.global_step, self.validated.step == trainer.global_step
        due = self._cadence.is_due(step, self.saver.step, epoch_begins=done == 0, measured=measured)
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

    def finish_saving(self) -> None:
        """Let a checkpoint that is being saved finish, before this rank ends with an error: its steps are good."""
        self.saver.background.wait_quietly(SAVED_WITHIN_S)

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
        flag = self.agreement.most_urgent(self._own_flag(trainer) if finding == FINE else WRONG + finding)
        if flag in (DUE, STOP) and not saving:
            # Until here, not all ranks knew that a checkpoint is due; now all check the state to be saved.
            return self._agree(trainer, saving=True)
        if flag == NOT_SAVED:
            self.saver.background.wait()
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
        if self.saver.background.failed:
            return NOT_SAVED
        asked = self.agreement.stop_signalled or self._reports.stop_asked
        if asked or self._stops_here(trainer):
            return STOP
        return DUE if self._cadence.is_time(trainer.global_step, self.saver.step) else CONTINUE

    def _stops_here(self, trainer: L.Trainer) -> bool:
        """Whether this generation is to end after the step that was done."""
        return self._context.stop is not None and trainer.global_step >= self._context.stop.step

    def _save(self, trainer: L.Trainer, *, wait: bool = False, last: bool = True, clocked: bool = False) -> None:
        saver, resume, began = self.saver, self._resume, time.monotonic()
        self.activity.enter("checkpoint")
        if saver.step != trainer.global_step:
            state, own = dump_checkpoint(trainer), resume.rank_state(trainer)
            metrics = finite(resume.metrics)
            if clocked or not self.validated.are_in(state["state_dict"], trainer):
                metrics = self._cadence.unchosen(metrics)
            chosen = not clocked and self._cadence.may_be_chosen(metrics, last=wait and last)
            held_loss = self._held_loss(trainer, state["state_dict"]) if chosen else None
            saver.save(trainer, state, own, metrics, self._samples(trainer), held_loss)
            self._cadence.begin()
        if wait:
            saver.background.wait()
        else:
            self._reports.stalled(time.monotonic() - began)
        self.activity.enter("between")

    def _held_loss(self, trainer: L.Trainer, state_dict: Mapping[str, object]) -> dict[str, object] | None:
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


class Cadence:
    """The cadence of one training. By steps, it is the same on all ranks. By the clock, each rank decides by itself,
    and all ranks save as soon as one of them asks.

    Args:
        clock: seconds that never go back, whatever happens to the machine's time of day.
    """

    def __init__(self, train: TrainSpec, clock: Callable[[], float] = time.monotonic) -> None:
        every_s = train.checkpoint.every_s
        assert every_s != "auto", "a run looks up what it stands for before it launches a rank"
        self._every_steps, self._every_s, self._select = train.checkpoint.every_steps, every_s, train.select
        self._best: float | None = None
        self._clock, self._since = clock, clock()

    def begin(self) -> None:
        """Count seconds from now on: training begins, or a checkpoint was saved."""
        self._since = self._clock()

    def is_due(self, step: int, last: int, *, epoch_begins: bool, measured: bool = False) -> bool:
        """Whether to save after `step`, where `last` is the newest checkpoint's step. Default: at the end of each
        epoch. Between checkpoints by the clock, epochs end without one, unless `train.select` chooses among them.

        Args:
            measured: whether a validation has just measured the metric of `train.select`.
        """
        if step <= last or measured:
            return step > last
        every = self._every_steps
        if every is not None:
            return step // every > last // every
        return epoch_begins and (self._every_s is None or self._select is not None)

    def is_time(self, step: int, last: int) -> bool:
        """Whether, by this rank's clock, the newest checkpoint is so old that this rank asks for the next one."""
        return self._every_s is not None and step > last and self._clock() - self._since >= self._every_s

    def unchosen(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics of a checkpoint that `train.select` must not choose: without the one by which it chooses. So the
        model that is handed over depends on no clock, and on no value that was measured on other weights.
        """
        return {name: value for name, value in metrics.items() if self._select is None or name != self._select.metric}

    def may_be_chosen(self, metrics: Mapping[str, float], *, last: bool) -> bool:
        """Whether train may hand this checkpoint over: it is the last, or the best so far by `train.select`."""
        value = metrics.get(self._select.metric) if self._select else None
        if self._select is None or value is None:
            return last
        best = self._best if self._best is not None else value
        better = value <= best if self._select.mode == "min" else value >= best
        self._best = value if better else best
        return better or last


class Saver:
    """One rank's part in saving; all ranks call it at the same steps.

    Attributes:
        last: the newest checkpoint that is sealed: written here or resumed from.
        step: the step of the newest checkpoint that was begun.
        background: the thread that writes it.
    """

    def __init__(self, context: Context, store: Store, reports: Reports, history: History, plan: Plan | None) -> None:
        self.last = context.resume
        self.step = self.last.step if self.last else 0
        self._context, self._store, self._reports = context, store, reports
        self._history, self._plan = history, plan
        self._staging = Staging()
        self.background = BackgroundWork()
        self._generations: list[dict[str, Any]] | None = None
        self._codes = read_codes(context.scratch)

    def save(
        self,
        trainer: L.Trainer,
        state: Mapping[str, Any],
        own: Mapping[str, object],
        metrics: Mapping[str, float],
        samples: int,
        held_loss: Mapping[str, object] | None = None,
    ) -> None:
        """Begin to save the state between two steps; only one save runs at a time.

        Args:
            state: Lightning's checkpoint dictionary; own: state of this rank alone.
            metrics: the newest values that are finite.
            held_loss: the loss on a held batch, as `training.fit.reference_loss` records it.

        Raises: the cause if the checkpoint before it could not be saved.
        """
        context, step = self._context, trainer.global_step
        # The previous capture's staging buffers are reused.
        self.background.wait()
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
        place = self._place(step, {**facts, "samples": samples, "held": held_loss, **skipped}, generations)
        history = list(self._history.records)

        def work() -> None:
            with self._reports.saving(step):
                ref = save(place, taken, context.world_size, history, self.background.group)
            origin = {"key": context.key, "training": context.training, "generation": context.generation}
            self.last = Checkpoint(ref=ref, **origin, **facts, **skipped)
            if context.rank == 0:
                self._reports.sealed(self.last)

        self.step = step
        self.background.start(work)

    def _generations_to(self, device: torch.device) -> Mapping[str, object]:
        """The part of the provenance that lists the generations up to here; {} on all ranks but the one that seals.

        Also {} where training resumed from a checkpoint without such a list, which an earlier Trainwright sealed.
        """
        context = self._context
        if context.rank != 0:
            return {}
        if self._generations is None:
            sealed = None if context.resume is None else self._store.manifest(context.resume.ref)
            earlier = [] if sealed is None else sealed.provenance.get("generations")
            has_held_loss = sealed is not None and sealed.settings.get("held") is not None
            self._generations = [] if earlier is None else [*earlier, self._segment(device, has_held_loss).to_json()]
        return {"generations": self._generations} if self._generations else {}

    def _segment(self, device: torch.device, has_held_loss: bool) -> Segment:
        """This generation's own part of the training."""
        context, train = self._context, self._context.train
        return Segment(
            training=context.training,
            generation=context.generation,
            first_step=0 if context.resume is None else context.resume.step,
            resumed_from=None if context.resume is None else context.resume.ref.id,
            has_held_loss=has_held_loss,
            nodes=context.nodes,
            devices=context.devices,
            strategy=train.strategy,
            micro_batch=self._plan.micro_batch if self._plan else 0,
            shard_ranks=train.shard_ranks,
            skip=context.skip,
            facts=machine_facts(device),
        )

    def _place(self, step: int, settings: dict[str, Any], generations: Mapping[str, object]) -> CheckpointTarget:
        context = self._context
        versions = {"python": platform.python_version(), "torch": torch.__version__, "lightning": L.__version__}
        return CheckpointTarget(
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
            code=lambda uri, identity: self._codes.code(layout.manifest(uri), {"id": identity}),
            on_wait=lambda error: self._reports.waits(error.message),
        )


def device_name(device: torch.device) -> str:
    """The device, with the model of a GPU, such as `cuda:0 (NVIDIA H200)`."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def machine_facts(device: torch.device) -> MachineFacts:
    """The facts of this process's machine; "" for a fact that the machine does not report."""
    cpu, flags = _cpu()
    name = f"{device.type} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
    return MachineFacts(
        system=platform.system(),
        machine=platform.machine(),
        cpu=cpu,
        flags=_short_digest(" ".join(sorted(flags.split()))) if flags else "",
        libc=" ".join(platform.libc_ver()),
        python=platform.python_version(),
        torch=torch.__version__,
        lightning=L.__version__,
        build=_short_digest(torch.__config__.show()),
        vector=torch.backends.cpu.get_cpu_capability(),
        device=name,
        threads=torch.get_num_threads(),
    )


def _cpu() -> tuple[str, str]:
    """The model's name and the flags of the first processor."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _CPU_INFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found.get("model name", platform.processor()), found.get("flags") or found.get("Features", "")


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
