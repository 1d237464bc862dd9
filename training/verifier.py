"""The child process of the verify stage: a clean process that proves a checkpoint can be used.

Run as `python -m training.verifier REQUEST ANSWER` by `infra.launch.child`. It re-reads the stored bytes against the
seal, rebuilds the module from the spec, loads tensors only, and looks at every value.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint
from infra.launch.child import child_main
from infra.store import open_store
from training.assemble import build_module
from training.checkpoint import load_module_weights, read_tensors
from training.checkpoint.tensors import WEIGHTS


def main(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Verify the checkpoint that a request names.

    Args:
        request: `store`, `store_options`, `checkpoint` (hand-off), `train` (settings with the Lightning config
            inlined), `project` (folder of the user's code), `dataset_path` ("" with external data).

    Returns:
        `tensors` loaded into the module and `bytes` re-read.

    Raises:
        CorruptError: bytes, names, shapes, types or values are not as they should be.
    """
    checkpoint = Checkpoint.from_json(request["checkpoint"])
    store = open_store(request["store"], request["store_options"], create=False)
    manifest = store.verify(checkpoint.ref)
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
    return {"tensors": tensors, "bytes": sum(file.bytes for file in manifest.files)}


if __name__ == "__main__":
    child_main(main)
