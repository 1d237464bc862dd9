"""Assembles a rank's module, data module, loaders and Trainer from its settings, and trains.

`training.fit.rank` is its entry, which loads this module once the environment is set.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning import Trainer

from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.gang import TrainingSummary
from data_contracts.pipeline_spec import OWN
from infra.records.handoffs import mixed, verify_checkpoint
from infra.store import Store
from training.fit.failures import report_failure
from training.fit.guards import refuse_doubtful, shape_lazy
from training.fit.launch_context import Context, MakeCallbacks
from training.fit.loop import install
from training.fit.measuring import ActivityCallback, History, keep_logger_files
from training.fit.reports import Reports, watch_collectives
from training.fit.resume import WarmStart
from training.fit.strategies import make_strategy, on_gpu
from training.fit.supervisor import Supervisor, device_name
from training.lightning_adapter import call_at_the_end
from training.loader import MemoryBudget, OrderedLoader, Sampling, Shards, Split, TrainLoader, ahead_bytes
from training.loader.loaders import CountRows, with_view
from training.order import Plan, make_plan
from training.user.ready import batch_transform, build_all, in_micro_batches, silence


def train(
    context: Context, reports: Reports, extra: MakeCallbacks | None = None
) -> tuple[Checkpoint | None, TrainingSummary]:
    """Train to the end, from the checkpoint that the launcher named, if any; returns the last one (rank 0 alone)."""
    silence()
    watch_collectives(reports.activity)
    store = context.open_store()
    resume = _folder(context, store, context.resume, "resume") if context.resume else None
    plan, loaders = our_loaders(context)
    reports.progress.micro_batch = plan.micro_batch if plan else 0
    supervisor = Supervisor(context, store, reports, history := History(str(context.scratch / "logs")), plan, resume)
    warm = _warm_start(context, store, resume, reports)
    owned = {**owned_settings(context, plan), "logger": history}
    own = [CountRows(), supervisor, supervisor.activity, supervisor.measuring, supervisor.validated]
    callbacks = [*own, *([] if warm is None else [warm]), *([] if extra is None else extra(context, store))]
    module, datamodule, trainer = build_all(
        context.settings, context.project, str(context.dataset_path or ""), owned, callbacks
    )
    if plan is not None:
        refuse_doubtful(module, context)
    split = loaders["train_dataloaders"].split if loaders else None
    shape_lazy(module, split, context.train, context.project, context.targets)
    if warm is not None:
        warm.install(module, trainer.precision_plugin.convert_module)
    install(trainer, supervisor, supervisor.activity)
    reports.progress.device = device_name(trainer.strategy.root_device)
    if loaders:
        supervisor.loader = loaders["train_dataloaders"]
        supervisor.held_split = loaders.get("val_dataloaders", loaders["train_dataloaders"]).split
    call_at_the_end(trainer, functools.partial(supervisor.finish, trainer))
    supervisor.agreement.listen()
    try:
        trainer.fit(module, datamodule=datamodule, ckpt_path=resume, **with_view(loaders))
    except BaseException as error:
        report_failure(error, context, reports)
        supervisor.finish_saving()
        raise
    finally:
        if "train_dataloaders" in loaders:
            loaders["train_dataloaders"].close()
        keep_logger_files(trainer, context, store)
    if supervisor.saver.last is None:
        raise UsageError(
            "train.lightning: the training ended without a single step.",
            remedy="Raise trainer.max_epochs, max_steps or limit_train_batches.",
        )
    samples = loaders["train_dataloaders"].samples if plan is not None else 0
    summary = _summary(context, plan, trainer, supervisor.activity, warm.sentence if warm else "", samples)
    return supervisor.saver.last if context.rank == 0 else None, summary


def _ended_early(trainer: Trainer, configured: Mapping[str, Any]) -> bool:
    """Whether a callback ended the training before its configured end, or has moved that end."""
    ends = {"max_epochs": trainer.max_epochs, "max_steps": trainer.max_steps}
    return trainer.should_stop or any(configured.get(name) not in (None, end) for name, end in ends.items())


def _summary(
    context: Context, plan: Plan | None, trainer: Trainer, activity: ActivityCallback, begun_with: str, samples: int
) -> TrainingSummary:
    """A rank's summary at the end: the plan, how long it waited and why, its first weights, and the time of steps."""
    # With the user's own loader, only one thing is known: our loader dropped no rows.
    planned = {"dropped_rows": 0} if plan is None else asdict(plan)
    if plan is not None and not trainer.lightning_module.automatic_optimization:
        # Lightning counts the steps of each optimizer, and several may step on a global batch.
        planned["steps_per_epoch"] = plan.steps_per_epoch * trainer.global_step // max(1, samples // plan.global_batch)
    wait_share, wait_cause = activity.waits(trainer)
    return TrainingSummary(
        **planned,
        wait_share=wait_share,
        wait_cause=wait_cause,
        begun_with=begun_with,
        stepping_s=round(activity.stepping_s, 6),
        ended_early=_ended_early(trainer, context.lightning.get("trainer") or {}),
    )


def _warm_start(context: Context, store: Store, resume: Path | None, reports: Reports) -> WarmStart | None:
    """The source of the module's first weights; for a resumed training, only the record of that source."""
    if context.init_from is None or context.train.init_from is None:
        return None
    begin = None if resume else _folder(context, store, context.init_from, "init")
    return WarmStart(begin, context.train.init_from.strict, reports.begun_with)


def owned_settings(context: Context, plan: Plan | None) -> dict[str, Any]:
    """The Trainer's arguments that the spec decides."""
    configured = context.lightning.get("trainer") or {}
    return {
        "strategy": make_strategy(context.train, context.world_size, configured.get("accelerator") or "auto"),
        "devices": context.devices,
        "num_nodes": context.nodes,
        # A data module of the user's makes its own batches: each is a step.
        "accumulate_grad_batches": plan.accumulate if plan else 1,
        **(in_micro_batches(configured, plan) if plan else {}),
        "use_distributed_sampler": plan is None,
        "enable_checkpointing": False,
        "default_root_dir": str(context.scratch),
    }


def our_loaders(context: Context) -> tuple[Plan | None, dict[str, Any]]:
    """The plan and the loaders over the sealed shards; (None, {}) where the user's code has its own loaders."""
    if context.dataset is None or context.lightning.get("data"):
        return None, {}
    folder, dataset = context.dataset_path, mixed(context.dataset, context.mixture)
    others = {name: one.rows("train") for name, one in sorted(context.mixture.items())}
    parts = {OWN: context.dataset.rows("train"), **others} if others else None
    assert folder is not None, "the launcher gives a dataset's local folder"
    transform = batch_transform(context.settings, context.project)
    train = context.train
    room = MemoryBudget.of(train.loader, context.local_world_size)

    def rows(split: str) -> Split:
        in_order = split != "train"
        return Split(
            Shards(folder, dataset, split),
            batch=train.batch,
            transform=transform,
            loader=train.loader,
            room=room,
            parts=parts,
            in_order=in_order,
        )

    train_rows = rows("train")
    plan = make_plan(train_rows.epoch_rows(train.global_batch_size), train, context.world_size)
    loader = TrainLoader(
        split=train_rows,
        plan=plan,
        sampling=Sampling(dataset.ref.id, train.seed, train.loader),
        rank=context.rank,
        ahead_bytes=ahead_bytes(train_rows.row_bytes * plan.micro_batch, room),
        # Lightning copies from pinned memory without waiting.
        pin=on_gpu((context.lightning.get("trainer") or {}).get("accelerator") or "auto"),
        skip=context.skip,
    )
    loaders: dict[str, Any] = {"train_dataloaders": loader}
    if dataset.rows("val"):
        loaders["val_dataloaders"] = OrderedLoader(rows("val"), plan.micro_batch, context.rank, context.world_size)
    return plan, loaders


def _folder(context: Context, store: Store, what: Checkpoint | Ref, name: str) -> Path:
    """The files of a checkpoint or import on this machine."""
    # One rank of a node reads every byte again. If the bytes are not what was sealed, its error ends the others.
    if context.local_rank == 0:
        verify_checkpoint(store, what) if isinstance(what, Checkpoint) else store.verify(what)
    ref = what.ref if isinstance(what, Checkpoint) else what
    return store.local(ref, cache=context.scratch / name)
