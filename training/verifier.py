"""The child process of the verify stage: a clean process that proves a checkpoint can be used.

Run as `python -m training.verifier REQUEST ANSWER` by `infra.launch.child`. It re-reads the stored bytes against the
seal, rebuilds the module from the spec, loads tensors only, and looks at every value.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.handoffs import Checkpoint, Dataset
from infra.checkpoints import verify_checkpoint
from infra.launch.child import child_main
from infra.store import open_store
from infra.store.seal import Manifest
from training.assemble import batch_transform, build_module, plain_trainer
from training.checkpoint import load_module_weights, read_tensors
from training.checkpoint.tensors import WEIGHTS
from training.held import circumstances, held_loss, misfit
from training.loader import Split, stored_order


def main(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Verify the checkpoint that a request names.

    Args:
        request: `store`, `store_options`, `checkpoint` (hand-off), `train` (settings with the Lightning config
            inlined), `project` (folder of the user's code), `dataset` (hand-off, None with external data) and
            `dataset_path`.

    Returns:
        `tensors` loaded into the module, `bytes` re-read, `loss` on the held batch (None if none was recorded), and
        `raised`: what the module's step raised instead of giving one, "" if it did not.

    Raises:
        CorruptError: bytes, names, shapes, types or values are not as they should be.
    """
    checkpoint = Checkpoint.from_json(request["checkpoint"])
    store = open_store(request["store"], request["store_options"], create=False)
    manifest = verify_checkpoint(store, checkpoint)
    folder = store.local(checkpoint.ref)
    module = build_module(request["train"], Path(request["project"]), request["dataset_path"])
    tensors = load_module_weights(module, folder)
    # A buffer may hold infinities by right, such as a causal mask; a parameter or an optimizer's state may not.
    learnt = {f"{WEIGHTS}/{name}" for name, _ in module.named_parameters()}
    for name, tensor in read_tensors(folder):
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
        # Its step needs what a hook of a real training sets up: there is nothing to compare, and nothing is wrong.
        raised = f"{type(error).__name__}: {error}"
    read = sum(file.bytes for file in manifest.files)
    return {"tensors": tensors, "bytes": read, "loss": loss, "raised": raised}


def _held_loss(request: dict[str, Any], module: Any, manifest: Manifest) -> float | None:
    """The loss on the held batch, if one was recorded; CorruptError if it is another one."""
    recorded = manifest.settings.get("held")
    if recorded is None:
        return None
    torch.set_num_threads(int(recorded["threads"]))
    train, project = request["train"], Path(request["project"])
    trainer = plain_trainer(train, [])
    module = trainer.precision_plugin.convert_module(module.to(trainer.strategy.root_device))
    module.trainer = trainer
    dataset = Dataset.from_json(request["dataset"])
    split = "val" if dataset.rows("val") else "train"
    told = (
        Path(request["dataset_path"]),
        dataset,
        split,
        train["batch"],
        batch_transform(train, project),
        stored_order(train),
    )
    rows = Split(*told, in_order=True)
    loss = held_loss(module, lambda: rows.take(slice(0, int(recorded["rows"]))), trainer)
    fault = "it gives no loss" if loss is None else misfit(recorded, loss, circumstances(trainer))
    if fault:
        raise CorruptError(f"The checkpoint {manifest.uri} is not what was trained: {fault}.")
    return loss


if __name__ == "__main__":
    child_main(main)
