"""One rank of a gang: `python -m training.rank`, started by torchrun with what it is told in the environment.

It assembles module, data and Trainer, trains, and leaves its answer in the scratch folder: `rank-<r>.done.json`, or
`rank-<r>.error.json` with the cause. Its exit code is the cause's.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.spec import OWN
from infra.checkpoints import verify_checkpoint
from infra.datasets import mixed
from infra.store import Store
from training.context import Context, read_context
from training.plan import Plan, make_plan
from training.reports import Reports


def main() -> int:
    """Train as told and return the exit code."""
    try:
        context = read_context()
    except Exception as error:
        return _untold(error)
    reports = Reports(context.scratch, context.rank, context.heartbeat_s)
    reports.report(now=True)
    reports.pulse()
    _prepare(context)
    try:
        checkpoint, plan = train(context, reports)
    except BaseException as error:
        traceback.print_exc()
        return _report(error, context, reports).exit_code
    reports.done(checkpoint, plan)
    return 0


def _report(error: BaseException, context: Context, reports: Reports) -> TrainwrightError:
    """Name an error at once: other ranks fail as soon as this one is gone, and the first to say why is believed."""
    from training.failures import classify

    failed = classify(error, context.project, timeout_s=context.train.collective_timeout_s)
    reports.failed(failed)
    return failed


def _untold(error: Exception) -> int:
    """Report that this rank cannot tell what to do; the environment alone says where."""
    traceback.print_exc()
    if not isinstance(error, TrainwrightError):
        error = TrainwrightError(f"The launch file cannot be read: {type(error).__name__}: {error}.")
    Reports(Path(os.environ["TRAINWRIGHT_SCRATCH"]), int(os.environ["RANK"]), 0).failed(error)
    return error.exit_code


def train(context: Context, reports: Reports) -> tuple[Checkpoint | None, dict[str, Any]]:
    """Train to the end, from the checkpoint that the launcher named if it named one.

    Returns: the last checkpoint (rank 0 alone), and the plan as JSON.
    """
    from training.assemble import build_all, in_micro_batches, silence
    from training.callbacks import Keeper, plan_json
    from training.history import History
    from training.loop import install
    from training.strategies import make_strategy
    from training.warm_start import WarmStart
    from training.whereabouts import watch_collectives

    silence()
    watch_collectives(reports.where)
    store = context.open_store()
    resume = _folder(context, store, context.resume, "resume") if context.resume else None
    plan, loaders = _our_loaders(context)
    reports.progress.micro_batch = plan.micro_batch if plan else 0
    history = History()
    keeper = Keeper(context, store, reports, history, plan, resume)
    warm = None
    if context.init_from is not None and context.train.init_from is not None:
        begin = None if resume else _folder(context, store, context.init_from, "init")
        warm = WarmStart(begin, context.train.init_from.strict, reports.begun_with)
    configured = context.lightning.get("trainer") or {}
    owned = {
        "strategy": make_strategy(context.train, context.world_size, configured.get("accelerator") or "auto"),
        "devices": context.devices,
        "num_nodes": context.nodes,
        # A data module of the user's makes its own batches: each is a step.
        "accumulate_grad_batches": plan.accumulate if plan else 1,
        **(in_micro_batches(configured, plan) if plan else {}),
        "use_distributed_sampler": plan is None,
        "enable_checkpointing": False,
        "logger": history,
        "default_root_dir": str(context.scratch),
    }
    dataset_path = str(context.dataset_path or "")
    callbacks = [keeper] if warm is None else [keeper, warm]
    module, datamodule, trainer = build_all(context.settings, context.project, dataset_path, owned, callbacks)
    if warm is not None:
        warm.install(module)
    install(trainer, keeper)
    reports.progress.device = str(trainer.strategy.root_device)
    if loaders:
        keeper.held_split = loaders.get("val_dataloaders", loaders["train_dataloaders"]).split
    # Strategy hooks are the last of a training's end, after whatever the module's own hook does to its weights.
    trainer.strategy.on_train_end = lambda: keeper.finish(trainer)  # type: ignore[method-assign]
    keeper.listen()
    try:
        trainer.fit(module, datamodule=datamodule, ckpt_path=resume, **loaders)
    except BaseException as error:
        _report(error, context, reports)
        keeper.settle()
        raise
    finally:
        if "train_dataloaders" in loaders:
            loaders["train_dataloaders"].close()
    if keeper.last is None:
        raise UsageError(
            "train.lightning: the training ended without a single step.",
            remedy="Raise trainer.max_epochs, max_steps or limit_train_batches.",
        )
    begun = {"begun_with": warm.sentence} if warm is not None else {}
    return (keeper.last if context.rank == 0 else None), {**plan_json(plan), **keeper.waits(trainer), **begun}


def _our_loaders(context: Context) -> tuple[Plan | None, dict[str, Any]]:
    """The plan and the loaders over the sealed shards; (None, {}) where the user's code has its own."""
    if context.dataset is None or context.lightning.get("data"):
        return None, {}
    from training.assemble import batch_transform
    from training.loader import OrderedLoader, Room, Split, TrainLoader, ahead_bytes

    folder, dataset = context.dataset_path, mixed(context.dataset, context.mixture)
    others = {name: one.rows("train") for name, one in sorted(context.mixture.items())}
    parts = {OWN: context.dataset.rows("train"), **others} if others else None
    assert folder is not None, "the launcher gives a dataset's local folder"
    transform = batch_transform(context.settings, context.project)
    train = context.train
    room = Room.of(train.loader, context.local_world_size)

    def rows(split: str) -> Split:
        in_order = split != "train"
        told = (folder, dataset, split, train.batch, transform, train.loader, room)
        return Split(*told, parts=parts, in_order=in_order)

    train_rows = rows("train")
    plan = make_plan(train_rows.epoch_rows(train.global_batch_size), train, context.world_size)
    loader = TrainLoader(
        *(train_rows, plan, dataset.ref.id, train.seed, context.rank, train.loader),
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
    # One rank of a node reads every byte again; if they are not what was sealed its error ends the others.
    if context.local_rank == 0:
        verify_checkpoint(store, what) if isinstance(what, Checkpoint) else store.verify(what)
    ref = what.ref if isinstance(what, Checkpoint) else what
    return store.local(ref, cache=context.scratch / name)


def _prepare(context: Context) -> None:
    """Settle what must be in the environment before torch is imported, where the launcher did not."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // context.local_world_size)))
    # gloo binds to what the host's name resolves to, which need not be reachable, not even from the host itself.
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: neither a thread of the user's nor a collective that waits for a dead rank may hold the end up.
    os._exit(code)
