"""The child process of the verify stage: a clean process that verifies that a checkpoint can be used.

Run as `python -m training.score.verify_worker REQUEST ANSWER` by `infra.child`. It reads the stored bytes
again and checks them against the seal, rebuilds the module from the spec, loads tensors only, and checks every value.
"""

from __future__ import annotations

from pathlib import Path

import lightning as L
import torch

from data_contracts.errors import CorruptError, Interrupted, TrainwrightError, UserCodeError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.children import VERIFY, Verified, VerifyRequest
from data_contracts.quoting import type_and_text
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from infra.store.seal import Manifest
from infra.store.store import WHOLE
from training.checkpoint import load_module_weights, read_tensors
from training.checkpoint.files import WEIGHTS
from training.fit.failures import classify
from training.fit.reference_loss import BEFORE_TRANSFER, circumstances, held_loss, misfit
from training.lightning_adapter import place_in_training
from training.loader import Shards, Split, stored_order
from training.score.team import Progress, Team, local_copy, raise_on_all, read_again
from training.user.ready import batch_transform, build_module, datamodule_of, make_ready, plain_trainer


def main(request: VerifyRequest, report: Report) -> Verified:
    """Verify the checkpoint that a request names; errors as in `verified_by`."""
    return verified_by(request, report, None)


def verified_by(request: VerifyRequest, report: Report, team: Team | None) -> Verified:
    """Verify the checkpoint that a request names, alone or on one rank of a team; each rank's answer is that of all.

    The ranks divide the bytes and the values between them. Each loads its part of the parameters and computes the loss.

    Raises:
        CorruptError: bytes, names, shapes, types or values are not as they should be.
    """
    checkpoint = request.checkpoint
    store, progress = open_at(request.store), Progress(report)
    if team is not None:
        team.connect(request.train)
    manifest = read_again(store, checkpoint, progress, team)
    folder = local_copy(store, checkpoint.ref, team)
    raised = ""
    with raise_on_all(team):
        try:
            module, tensors = _rebuilt(request, folder, "fit", team)
        except UserCodeError as error:
            # Its `setup` may need what only a training has, such as the loader. Then there is no loss to compare.
            raised = error.message
            module, tensors = _rebuilt(request, folder, "test", team)
    progress.moved(long=True)
    # Parameters that were replaced when the module was sharded keep their names.
    learnt = {f"{WEIGHTS}/{name}" for name, _ in module.named_parameters()}
    _check_values(checkpoint, folder, learnt, progress, team)
    loss, raised = (None, raised) if raised else _compared(request, module, manifest, team)
    read = sum(file.bytes for file in manifest.files)
    return Verified(tensors=tensors, bytes=read, loss=loss, raised=raised)


def _rebuilt(request: VerifyRequest, folder: Path, stage: str, team: Team | None) -> tuple[L.LightningModule, int]:
    """The module with the checkpoint's weights, ready for a stage of the Trainer, and how many tensors it got."""
    train, project = request.train, request.project
    path = "" if request.dataset is None else str(request.path(request.dataset.ref))
    ranks = {"devices": 1, "accelerator": "cpu"} if team is None else team.trainer_settings()
    trainer, loaded = plain_trainer(train, [], ranks), [0]
    if team is not None:
        team.folder = folder

    def load(module: L.LightningModule) -> None:
        loaded.append(load_module_weights(module, folder))

    module = build_module(train, project, path, load=None if team is not None and team.sharded else load)
    make_ready(module, trainer, stage, project, datamodule_of(module, train, project, path))
    if team is not None and team.sharded:
        trainer.strategy.model_to_device()
        loaded.append(team.loaded)
    return module, loaded[-1]


def _check_values(
    checkpoint: Checkpoint, folder: Path, learnt: set[str], progress: Progress, team: Team | None
) -> None:
    """CorruptError if a value that training computed is not finite; the ranks of a team divide the tensors.

    Args:
        learnt: names of the module's parameters. A buffer may hold infinities on purpose, such as a causal mask.
    """
    share = WHOLE if team is None else team.share
    with raise_on_all(team, share) as checked:
        for name, tensor in read_tensors(folder, share):
            progress.moved(long=True)
            matters = name in learnt or name.startswith("optimizer_states/")
            if matters and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise CorruptError(
                    f"The checkpoint {checkpoint.ref.uri} has values in {name} that are not finite.",
                    remedy="The training diverged; lower the learning rate and train again.",
                )
            checked()


def _compared(
    request: VerifyRequest, module: L.LightningModule, manifest: Manifest, team: Team | None
) -> tuple[float | None, str]:
    """The loss on the held batch, and what the user's step raised on the first rank on which it did.

    A rank that raises leaves the others waiting for its parameters, so what they met says nothing about the step.
    """
    loss, raised, lost = None, "", None
    with raise_on_all(team):
        try:
            loss = _held_loss(request, module, manifest, alone=team is None)
        except TrainwrightError:
            raise
        except Exception as error:
            cause = None if team is None else classify(error, request.project, timeout_s=team.timeout_s)
            lost = cause if isinstance(cause, Interrupted) else None
            # The step needs what a hook of a real training sets up: there is no loss to compare, which is no error.
            raised = "" if lost is not None else type_and_text(error)
    if team is not None:
        raised = team.first_of(raised)
    if lost is not None and not raised:
        raise lost
    return None if raised else loss, raised


def _held_loss(request: VerifyRequest, module: L.LightningModule, manifest: Manifest, *, alone: bool) -> float | None:
    """The loss on the held batch, if one was recorded; CorruptError if it differs from the recorded loss.

    Args:
        alone: whether this process verifies alone, and not as one rank of a team.
    """
    recorded = manifest.settings.get("held")
    if recorded is None:
        return None
    torch.set_num_threads(int(recorded["threads"]))
    train, project, dataset = request.train, request.project, request.dataset
    trainer = plain_trainer(train, []) if alone else module.trainer
    trainer.precision_plugin.convert_module(module.to(trainer.strategy.root_device))
    module.trainer = trainer
    place_in_training(trainer, request.checkpoint.step, request.checkpoint.epoch)
    assert dataset is not None  # a loss is recorded for datasets of ours alone
    split = "val" if dataset.rows("val") else "train"
    rows = Split(
        Shards(request.path(dataset.ref), dataset, split),
        batch=train["batch"],
        transform=batch_transform(train, project),
        loader=stored_order(train),
        in_order=True,
    )
    batch, ranks = slice(0, int(recorded["rows"])), request.checkpoint.world_size
    before_transfer = bool(recorded.get(BEFORE_TRANSFER))
    loss = held_loss(module, lambda: rows.take(batch), trainer, ranks, before_transfer=before_transfer)
    fault = "it gives no loss" if loss is None else misfit(recorded, loss, circumstances(trainer))
    if fault:
        raise CorruptError(f"The checkpoint {manifest.uri} is not what was trained: {fault}.")
    return loss


if __name__ == "__main__":
    child_main(VERIFY, main)
