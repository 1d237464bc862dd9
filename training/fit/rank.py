"""One rank of a gang: `python -m training.fit.rank`, started by torchrun with its settings in the environment.

It assembles module, data and Trainer, trains, and writes its result to the scratch folder: `rank-<r>.done.json`, or
`rank-<r>.error.json` with the cause. The cause decides its exit code.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.messages.gang import TrainingSummary
from data_contracts.pipeline_spec import OWN
from data_contracts.quoting import type_and_text
from infra.gang.rank_files import SCRATCH, RankFiles
from infra.processes.light_imports import light_imports
from infra.records.handoffs import mixed, verify_checkpoint
from infra.store import Store
from training.fit.launch_context import Context, read_context
from training.fit.reports import Reports
from training.order import Plan, make_plan

if TYPE_CHECKING:
    from lightning import Trainer

    from training.fit.measuring import ActivityCallback
    from training.fit.resume import WarmStart


Trained = tuple[Checkpoint | None, TrainingSummary]
# Makes callbacks that the Trainer gets after ours.
MakeCallbacks = Callable[[Context, Store], Sequence[Any]]


def _no_callbacks(_: Context, __: Store) -> Sequence[Any]:
    return ()


def main(extra: MakeCallbacks = _no_callbacks) -> int:
    """Train this rank's part and return the exit code."""
    try:
        context = read_context()
    except Exception as error:
        return _unread(error)
    reports = Reports(context.scratch, context.rank, context.heartbeat_s)
    reports.report(now=True)
    reports.pulse()
    prepare(context)
    try:
        checkpoint, summary = train(context, reports, extra)
    except BaseException as error:
        traceback.print_exc()
        return _report(error, context, reports).exit_code
    reports.done(checkpoint, summary)
    return 0


def _report(error: BaseException, context: Context, reports: Reports) -> TrainwrightError:
    """Report an error at once: other ranks fail as soon as this one ends, and the first report decides the cause."""
    from training.fit.failures import classify

    failed = classify(error, context.project, timeout_s=context.train.collective_timeout_s)
    reports.failed(failed)
    return failed


def _unread(error: Exception) -> int:
    """Report that this rank could not read its settings. Only the environment says where to report."""
    traceback.print_exc()
    if not isinstance(error, TrainwrightError):
        error = TrainwrightError(f"The launch file cannot be read: {type_and_text(error)}.")
    RankFiles(Path(os.environ[SCRATCH]), int(os.environ["RANK"])).write_error(error)
    return error.exit_code


def train(context: Context, reports: Reports, extra: MakeCallbacks = _no_callbacks) -> Trained:
    """Train to the end, from the checkpoint that the launcher named, if any; returns the last one (rank 0 alone)."""
    with light_imports():
        from training.fit.guards import refuse_doubtful, shape_lazy
        from training.fit.loop import install
        from training.fit.measuring import History, keep_logger_files
        from training.fit.reports import watch_collectives
        from training.fit.supervisor import Supervisor
        from training.lightning_adapter import call_at_the_end
        from training.loader.loaders import CountRows, with_view
        from training.user.ready import build_all, silence
    gc.freeze()  # the first garbage collection of all imported objects would take a quarter of a second

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
    callbacks = [*own, *([] if warm is None else [warm])]
    module, datamodule, trainer = build_all(
        context.settings, context.project, str(context.dataset_path or ""), owned, [*callbacks, *extra(context, store)]
    )
    if plan is not None:
        refuse_doubtful(module, context)
    split = loaders["train_dataloaders"].split if loaders else None
    shape_lazy(module, split, context.train, context.project, context.targets)
    if warm is not None:
        warm.install(module, trainer.precision_plugin.convert_module)
    install(trainer, supervisor, supervisor.activity)
    reports.progress.device = str(trainer.strategy.root_device)
    if loaders:
        supervisor.loader = loaders["train_dataloaders"]
        supervisor.held_split = loaders.get("val_dataloaders", loaders["train_dataloaders"]).split
    call_at_the_end(trainer, functools.partial(supervisor.finish, trainer))
    supervisor.listen()
    try:
        trainer.fit(module, datamodule=datamodule, ckpt_path=resume, **with_view(loaders))
    except BaseException as error:
        _report(error, context, reports)
        supervisor.settle()
        raise
    finally:
        if "train_dataloaders" in loaders:
            loaders["train_dataloaders"].close()
        keep_logger_files(trainer, context, store)
    if supervisor.last is None:
        raise UsageError(
            "train.lightning: the training ended without a single step.",
            remedy="Raise trainer.max_epochs, max_steps or limit_train_batches.",
        )
    samples = loaders["train_dataloaders"].samples if plan is not None else 0
    summary = _summary(context, plan, trainer, supervisor.activity, warm.sentence if warm else "", samples)
    return supervisor.last if context.rank == 0 else None, summary


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
    from training.fit.resume import WarmStart

    begin = None if resume else _folder(context, store, context.init_from, "init")
    return WarmStart(begin, context.train.init_from.strict, reports.begun_with)


def owned_settings(context: Context, plan: Plan | None) -> dict[str, Any]:
    """The Trainer's arguments that the spec decides."""
    from training.fit.strategies import make_strategy
    from training.user.ready import in_micro_batches

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
    from training.loader import MemoryBudget, OrderedLoader, Sampling, Shards, Split, TrainLoader, ahead_bytes
    from training.user.ready import batch_transform

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
        pin=_on_gpu(context),
        skip=context.skip,
    )
    loaders: dict[str, Any] = {"train_dataloaders": loader}
    if dataset.rows("val"):
        loaders["val_dataloaders"] = OrderedLoader(rows("val"), plan.micro_batch, context.rank, context.world_size)
    return plan, loaders


def _on_gpu(context: Context) -> bool:
    """Whether batches go to a CUDA device: Lightning copies from pinned memory without waiting."""
    import torch

    accelerator = (context.lightning.get("trainer") or {}).get("accelerator") or "auto"
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


def _folder(context: Context, store: Store, what: Checkpoint | Ref, name: str) -> Path:
    """The files of a checkpoint or import on this machine."""
    # One rank of a node reads every byte again. If the bytes are not what was sealed, its error ends the others.
    if context.local_rank == 0:
        verify_checkpoint(store, what) if isinstance(what, Checkpoint) else store.verify(what)
    ref = what.ref if isinstance(what, Checkpoint) else what
    return store.local(ref, cache=context.scratch / name)


def prepare(context: Context) -> None:
    """Set the variables that must be in the environment before torch is imported, if the launcher did not."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // context.local_world_size)))
    # gloo binds to the address of the host's name, which may not be reachable, not even from the host itself.
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def end(code: int) -> None:
    """End this process with an exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread of the user's or a collective that waits for a dead rank would block it.
    os._exit(code)


if __name__ == "__main__":
    end(main())
