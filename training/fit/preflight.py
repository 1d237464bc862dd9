"""Checks before step 1 that all state can be saved and read again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.nn.parameter import is_lazy

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import TrainSpec
from training.checkpoint.capture import Capture, capture, check_sizes, future_bytes, index_bytes, state_bytes
from training.checkpoint.codec import UnsupportedState
from training.fit.agreement import Agreement
from training.fit.launch_context import Context
from training.fit.reference_loss import evaluating
from training.loader import Split
from training.user.assemble import after_configuring
from training.user.forward_inputs import call_forward, entry_names, match_forward
from training.user.imports import user_code

log = logging.getLogger(__name__)


def try_capture(state: dict[str, Any], rank_state: dict[str, Any], rank: int) -> Capture:
    """What a checkpoint would hold, without copying it; UsageError for a value that no checkpoint can hold.

    Args:
        state: Lightning's checkpoint dictionary; rank_state: what belongs to this rank alone.
    """
    try:
        return capture(state, rank_state, rank, dry=True)
    except UnsupportedState as error:
        raise UsageError(
            f"{error.path} is a {error.kind}, which a checkpoint cannot hold: it takes tensors and plain values.",
            remedy="Keep it out of the saved state, or make it tensors, numbers, texts, lists or dictionaries.",
        ) from error
    except RecursionError as error:
        raise UsageError(
            "The saved state of the module, its callbacks or its data module contains itself, or is too deep.",
            remedy="Keep it out of the saved state.",
        ) from error


def check_checkpoint_size(taken: Capture, optimizers: Sequence[Any], agreement: Agreement) -> None:
    """UsageError if checkpoints could be written but not read: the index grows with tensors times ranks. Collective."""
    check_sizes(agreement.total(index_bytes(taken) + future_bytes(taken, optimizers)), state_bytes(taken))


def refuse_doubtful(module: L.LightningModule, context: Context) -> None:
    """UsageError if evaluate could not tell which entries of a batch the module's `forward` gets."""
    train, dataset = context.train, context.dataset
    called = not is_overridden("predict_step", module, L.LightningModule)
    # What a transform makes of a batch is not known here.
    if context.targets and called and train.transform is None and dataset is not None:
        batch = dataset.columns if train.batch is None else train.batch
        match_forward(module.forward, entry_names(batch), set(context.targets), keyed=isinstance(batch, dict))


def shape_lazy(
    module: L.LightningModule, split: Split | None, train: TrainSpec, project: Path, targets: Collection[str]
) -> None:
    """Make the module's `configure_model` give lazy parameters their shapes after the user's own hook, by a forward
    pass over two rows: before weights, ranks and optimizers need them.

    Args:
        split: has the rows; None where the user's own data module has them: then lazy parameters are refused.
        targets: entries of a batch that metrics take for the truth.
    """

    def shape(configured: L.LightningModule) -> None:
        if split is not None and _lazy(configured):
            what = "the forward pass that gives lazy parameters their shapes"
            with evaluating(configured), user_code(what, project.resolve()):
                # Every strategy draws the same values, but not those that the constructor drew.
                torch.manual_seed(train.seed + 1)
                if is_overridden("predict_step", configured, L.LightningModule):
                    configured.predict_step(split.take(slice(0, 2)), 0)
                else:
                    call_forward(configured, split.take(slice(0, 2)), set(targets), train.batch)
        if left := _lazy(configured):
            raise UsageError(
                f"train.lightning: {left[0]} is a lazy parameter that has no shape before the first step.",
                remedy="Give it its shape in configure_model, by a forward pass over zeros.",
            )

    after_configuring(module, shape)


def _lazy(module: L.LightningModule) -> list[str]:
    return [name for name, value in [*module.named_parameters(), *module.named_buffers()] if is_lazy(value)]


def warn_of_batch_size(trainer: L.Trainer, context: Context) -> None:
    """Warn if the user's own loader has another batch size than the spec plans with."""
    size = getattr(trainer.train_dataloader, "batch_size", None)
    wanted = context.train.global_batch_size // context.world_size
    if isinstance(size, int) and size != wanted and trainer.is_global_zero:
        log.warning(
            "The data module's batch size is %d, but train.global_batch_size %d on %d ranks means %d; "
            "steps and samples are counted as the spec has them.",
            *(size, context.train.global_batch_size, context.world_size, wanted),
        )
