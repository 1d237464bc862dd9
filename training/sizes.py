"""The child process that weighs a module before a node is launched: `python -m training.sizes REQUEST ANSWER`.

The module is built on torch's meta device, where tensors have a shape and no memory, and its optimizers take one step
there, which makes their state whichever they are.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from data_contracts.errors import UserCodeError
from infra.launch.child import child_main
from training.assemble import build_module
from training.strategies import units

_TYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}


def main(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Weigh the module that a request names.

    Args:
        request: `train` (settings with the Lightning config inlined) and `project` (folder of the user's code).

    Returns: bytes of its `parameters`, `gradients`, optimizer `state` (0 where that cannot be known without training)
        and `buffers`; of the largest `unit` by `shard_modules`, and of the largest `layer`. Where the module cannot be
        built without memory, `unknown` says why and nothing else is told.

    Raises:
        UsageError: the module's class or arguments do not fit, or `shard_modules` names what it does not have.
    """
    train = request["train"]
    try:
        with _without_memory(train):
            module = build_module(train, Path(request["project"]), optimizer=True)
    except UserCodeError as error:
        # Not theirs to answer for: code that reads its weights' values cannot run here, and may well elsewhere.
        return {"unknown": error.message}
    learns = [parameter for parameter in module.parameters() if parameter.requires_grad]
    state = 0
    # Of an optimizer that wants what only training has, nothing is known.
    with contextlib.suppress(Exception):
        state = _state_bytes(module, train["lightning"].get("trainer") or {})
    return {
        "parameters": _bytes(module.parameters()),
        "gradients": _bytes(learns),
        "state": state,
        "buffers": _bytes(module.buffers()),
        "unit": max(_unit_bytes(module, train["shard_modules"])),
        "layer": max(_bytes(part.parameters(recurse=False)) for part in module.modules()),
    }


@contextlib.contextmanager
def _without_memory(train: dict[str, Any]) -> Iterator[None]:
    """New tensors have no memory, and the type that a `-true` precision of the config gives them."""
    precision = str((train["lightning"].get("trainer") or {}).get("precision") or "")
    true = re.fullmatch(r"(bf16|16|64)-true|(64)", precision)
    before = torch.get_default_dtype()
    torch.set_default_dtype(_TYPES[true[1] or true[2]] if true else before)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def _state_bytes(module: LightningModule, config: dict[str, Any]) -> int:
    """Bytes that the module's optimizers keep from step to step."""
    lasts = {name: config[name] for name in ("max_steps", "max_epochs") if config.get(name) is not None}
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **lasts)
    total = 0
    for optimizer in _optimizers(module.configure_optimizers()):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        total += sum(_bytes(each.values()) for each in optimizer.state.values())
    return total


def _optimizers(made: Any) -> Iterator[torch.optim.Optimizer]:
    """The optimizers in whatever `configure_optimizers` may return."""
    if isinstance(made, torch.optim.Optimizer):
        yield made
    elif isinstance(made, dict):
        yield from _optimizers(made.get("optimizer"))
    elif isinstance(made, list | tuple):
        for one in made:
            yield from _optimizers(one)


def _unit_bytes(module: nn.Module, shard_modules: list[str] | int | None) -> Iterator[int]:
    """Bytes of what is gathered at once: a unit's parameters that no unit within it has; the rest is the root's."""
    taken: set[int] = set()
    for unit in [*units(module, shard_modules), module]:
        own = [parameter for parameter in unit.parameters() if id(parameter) not in taken]
        taken.update(map(id, own))
        yield _bytes(own)


def _bytes(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))


if __name__ == "__main__":
    child_main(main)
