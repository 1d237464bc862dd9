"""The child process that measures a module's memory before a node is launched.

Run as `python -m training.fit.memory.module_memory REQUEST ANSWER`. The module is built on torch's meta device, where
tensors have a shape and no memory. Its optimizers take one step there, which creates their state, whatever the
optimizer is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.parameter import is_lazy

from data_contracts.errors import UserCodeError
from data_contracts.messages.commands import MODULE_MEMORY, ModuleSizes, SizeRequest
from data_contracts.quoting import describe
from infra.processes.child_main import Report, child_main
from training.fit.memory.module_state import default_type, optimizers_of, with_trainer
from training.fit.memory.step_memory import probe
from training.fit.shard_units import units
from training.fit.warm_start import index_of, match
from training.user.assemble import build_module, datamodule_of, make_ready
from training.user.imports import user_code


def main(request: SizeRequest, report: Report) -> ModuleSizes:
    """Measure the memory of the module that a request names; `unknown` says why it cannot be built without memory.

    Raises:
        UsageError: the module's class or arguments do not fit, `shard_modules` names a class that it does not have, or
            `init_from` does not fit.
    """
    train, project = request.train, Path(request.project)
    config = train["lightning"].get("trainer") or {}
    try:
        with default_type(config), torch.device("meta"):
            module = build_module(train, project, optimizer=True)
            with_trainer(module, config, request.steps)
        datamodule = datamodule_of(module, train, project, request.dataset_path)
        # They may write files and read data, with values that are not there without memory.
        with user_code("the module's prepare_data", project.resolve()):
            module.prepare_data()
            if datamodule is not None:
                datamodule.prepare_data()
                datamodule.setup("fit")
                datamodule.setup = lambda stage: None  # type: ignore[method-assign]
        with default_type(config), torch.device("meta"):
            make_ready(module, module.trainer, "fit", project, datamodule, prepared=True)
    except UserCodeError as error:
        # Not an error of the user's: code that reads its weights' values cannot run here, but may run elsewhere.
        return ModuleSizes(unknown=error.message)
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        return ModuleSizes(unknown="the module has lazy parameters, which get their shapes from the first batch")
    begun_with = ""
    if request.begin:
        index = index_of(Path(request.begin))
        begun_with = match(module, index, strict=train["init_from"]["strict"], planned=True)[1]
    learns = [parameter for parameter in module.parameters() if parameter.requires_grad]
    kept, state, stateless = _bytes(module.parameters()) + _bytes(learns), 0, ""
    try:
        state = _state_bytes(module)
    except Exception as error:  # the optimizer needs something that only a training has
        stateless = describe(error, project)
    steps, unprobed = probe(request, kept + state) if request.rows else ([], "")
    return ModuleSizes(
        parameters=kept - _bytes(learns),
        gradients=_bytes(learns),
        state=state,
        buffers=_bytes(module.buffers()),
        unit=max(_unit_bytes(module, train["shard_modules"])),
        layer=max(_bytes(part.parameters(recurse=False)) for part in module.modules()),
        stateless=stateless,
        steps=steps,
        unprobed=unprobed,
        begun_with=begun_with,
    )


def _state_bytes(module: LightningModule) -> int:
    """Bytes of the state that the module's optimizers keep between steps."""
    total = 0
    for optimizer in optimizers_of(module.configure_optimizers()):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        total += sum(_bytes(each.values()) for each in optimizer.state.values())
    return total


def _unit_bytes(module: nn.Module, shard_modules: list[str] | int | None) -> Iterator[int]:
    """Bytes that are gathered at once: a unit's parameters without those of units inside it; the root has the rest."""
    taken: set[int] = set()
    for unit in [*units(module, shard_modules), module]:
        own = [parameter for parameter in unit.parameters() if id(parameter) not in taken]
        taken.update(map(id, own))
        yield _bytes(own)


def _bytes(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))


if __name__ == "__main__":
    child_main(MODULE_MEMORY, main)
