"""The child process of the verify stage: a clean process that verifies that a checkpoint can be used.

Run as `python -m training.score.verify_worker REQUEST ANSWER` by `infra.child`. It reads the stored bytes
again and checks them against the seal, rebuilds the module from the spec, loads tensors only, and checks every value.
"""

from __future__ import annotations

from typing import Any

import torch

from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.messages.children import VERIFY, Verified, VerifyRequest
from data_contracts.quoting import type_and_text
from infra.checkpoints import verify_checkpoint
from infra.processes.child_main import Report, child_main
from infra.store import open_at
from infra.store.seal import Manifest
from training.checkpoint import load_module_weights, read_tensors
from training.checkpoint.tensors import WEIGHTS
from training.fit.reference_loss import circumstances, held_loss, misfit
from training.loader import Shards, Split, stored_order
from training.score.progress import Progress
from training.user.assemble import batch_transform, build_module, plain_trainer


def main(request: VerifyRequest, report: Report) -> Verified:
    """Verify the checkpoint that a request names.

    Raises:
        CorruptError: bytes, names, shapes, types or values are not as they should be.
    """
    checkpoint, dataset = request.checkpoint, request.dataset
    store = open_at(request.store)
    progress = Progress(report)
    manifest = verify_checkpoint(store, checkpoint, lambda: progress.moved(long=True))
    folder = store.local(checkpoint.ref)
    module = build_module(request.train, request.project, "" if dataset is None else str(request.path(dataset.ref)))
    tensors = load_module_weights(module, folder)
    # A buffer may hold infinities on purpose, such as a causal mask; a parameter or an optimizer's state may not.
    learnt = {f"{WEIGHTS}/{name}" for name, _ in module.named_parameters()}
    for name, tensor in read_tensors(folder):
        progress.moved(long=True)
        matters = name in learnt or name.startswith("optimizer_states/")
        if matters and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CorruptError(
                f"The checkpoint {checkpoint.ref.uri} has values in {name} that are not finite.",
                remedy="The training diverged; lower the learning rate and train again.",
            )
    loss, raised = None, ""
    try:
        loss = _held_loss(request, module, manifest)
    except TrainwrightError:
        raise
    except Exception as error:
        # The step needs what a hook of a real training sets up: there is no loss to compare, and this is not an error.
        raised = type_and_text(error)
    read = sum(file.bytes for file in manifest.files)
    return Verified(tensors=tensors, bytes=read, loss=loss, raised=raised)


def _held_loss(request: VerifyRequest, module: Any, manifest: Manifest) -> float | None:
    """The loss on the held batch, if one was recorded; CorruptError if it differs from the recorded loss."""
    recorded = manifest.settings.get("held")
    if recorded is None:
        return None
    torch.set_num_threads(int(recorded["threads"]))
    train, project, dataset = request.train, request.project, request.dataset
    trainer = plain_trainer(train, [])
    module = trainer.precision_plugin.convert_module(module.to(trainer.strategy.root_device))
    module.trainer = trainer
    assert dataset is not None  # a loss is recorded for datasets of ours alone
    split = "val" if dataset.rows("val") else "train"
    rows = Split(
        Shards(request.path(dataset.ref), dataset, split),
        batch=train["batch"],
        transform=batch_transform(train, project),
        loader=stored_order(train),
        in_order=True,
    )
    loss = held_loss(module, lambda: rows.take(slice(0, int(recorded["rows"]))), trainer)
    fault = "it gives no loss" if loss is None else misfit(recorded, loss, circumstances(trainer))
    if fault:
        raise CorruptError(f"The checkpoint {manifest.uri} is not what was trained: {fault}.")
    return loss


if __name__ == "__main__":
    child_main(VERIFY, main)
