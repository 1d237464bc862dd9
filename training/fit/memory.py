"""The child process that measures how much memory a module needs, and one step of it, before a node is launched.

Run as `python -m training.fit.memory REQUEST ANSWER`; it trains nothing. The module is built on torch's meta device,
where tensors have a shape and no memory. Its optimizers take one step there, which creates their state, whatever the
optimizer is. For a training step, the module is built with torch's fake tensors and runs forward on a batch of zeros:
shapes and types are followed, values are not. What autograd saves for the backward pass is counted in bytes of tensors.
What CUDA, its libraries and the allocator add is not counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from lightning.fabric.utilities.apply_func import apply_to_collection
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy

from data_contracts.errors import TrainwrightError, UserCodeError
from data_contracts.messages.commands import MODULE_MEMORY, ModuleSizes, SizeRequest, StepMemory
from data_contracts.quoting import describe, text_of
from infra.processes.child_main import Report, child_main
from training.fit.resume import index_of, match
from training.fit.strategies import units
from training.formats.schema import field_of
from training.lightning_adapter import attach_loader
from training.loader.rows import Fixed, columns_of
from training.user.imports import user_code
from training.user.ready import batch_transform, build_module, datamodule_of, make_ready, true_type

# Of an epoch whose length is not known: no size depends on it, but a schedule may need a number.
STEPS = 1_000
_MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


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
    steps, unprobed = probe(request, kept + state + _bytes(module.buffers())) if request.rows else ([], "")
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


@contextlib.contextmanager
def default_type(config: Mapping[str, Any]) -> Iterator[None]:
    """Let new tensors have the type that a `-true` precision of the Trainer's config gives them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(true_type(config) or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def with_trainer(module: LightningModule, config: Mapping[str, Any], steps: int) -> None:
    """Attach a Trainer, which a module and its schedules may ask for the length of the training.

    Args:
        steps: of an epoch; 0 if unknown.
    """
    lasts = {name: config[name] for name in ("max_steps", "max_epochs") if config.get(name) is not None}
    lasts.setdefault("max_epochs", -1 if "max_steps" in lasts else 1_000)  # Lightning sets this when it fits
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **lasts)
    attach_loader(module.trainer, module, range(steps or STEPS))  # only its length is asked


def optimizers_of(made: Any) -> Iterator[torch.optim.Optimizer]:
    """The optimizers in whatever `configure_optimizers` may return."""
    if isinstance(made, torch.optim.Optimizer):
        yield made
    elif isinstance(made, dict):
        yield from optimizers_of(made.get("optimizer"))
    elif isinstance(made, list | tuple):
        for one in made:
            yield from optimizers_of(one)


class Unprobed(Exception):
    """Why a step cannot be measured, as the end of a sentence."""


def probe(request: SizeRequest, kept_bytes: int) -> tuple[list[StepMemory], str]:
    """The memory of a step with each number of rows that a request names; or none, and why not.

    Args:
        kept_bytes: parameters, gradients, optimizer state and buffers.
    """
    try:
        return [_step(request, rows, kept_bytes) for rows in request.rows], ""
    except Unprobed as reason:
        return [], text_of(reason)
    except TrainwrightError as error:
        return [], error.message.rstrip(".")
    except Exception as error:
        # The module's code may do anything; here it has no values, no running Trainer and no data.
        return [], f"{type(error).__name__} in a step on zeros"


def _step(request: SizeRequest, rows: int, kept_bytes: int) -> StepMemory:
    """A step's memory: gradients of the step before are there until the backward pass begins."""
    train, project = request.train, Path(request.project)
    config = train["lightning"].get("trainer") or {}
    batch, fake = zeros(request, rows), FakeTensorMode(allow_non_fake_inputs=True)
    with default_type(config):
        with fake:
            module = build_module(train, project, optimizer=True)
        with_trainer(module, config, request.steps)  # Lightning looks at the loader's length as a tensor
        with fake:
            make_ready(module, module.trainer, "fit", project, prepared=True)
            module.train()
            if not module.automatic_optimization:
                raise Unprobed("the module optimises by hand (automatic_optimization is False)")
            count = len(list(optimizers_of(module.configure_optimizers())))
            if count != 1:
                raise Unprobed(f"the module has {count} optimizers")
            batch = _placed(batch, fake, config)
            for name in ("log", "log_dict"):  # without a running Trainer there is nothing to log to
                setattr(module, name, lambda *_, **__: None)
            saved = _saved_bytes(module, batch, str(config.get("precision") or ""))
    given: list[torch.Tensor] = []
    apply_to_collection(batch, torch.Tensor, given.append)
    learns = [_bytes([parameter]) for parameter in module.parameters() if parameter.requires_grad]
    # The backward pass makes a gradient as large as what was saved.
    step = _bytes(given) + sum(saved) + max(saved, default=0)
    # On accelerators, torch's optimizers update all parameters at once.
    update = _bytes(given) + (sum(learns) if request.accelerated else max(learns, default=0))
    return StepMemory(rows=rows, peak=kept_bytes + max(step, update), step=step, update=update)


def _saved_bytes(module: LightningModule, batch: Any, precision: str) -> list[int]:
    """Bytes of each memory that autograd saves for the backward pass, without parameters, buffers and the batch."""
    ours: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    apply_to_collection(batch, torch.Tensor, ours.append)
    storages = {id(storage): storage for storage in (tensor.untyped_storage() for tensor in ours)}
    known = set(storages)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages.setdefault(id(storage), storage)
        return tensor

    mixed = _MIXED.get(precision)
    autocast = torch.autocast("cpu", dtype=mixed) if mixed is not None else contextlib.nullcontext()
    with saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        made = module.training_step(batch, 0)
    loss = made["loss"] if isinstance(made, dict) else made
    if not isinstance(loss, torch.Tensor):
        raise Unprobed("training_step returns no loss")
    return [storage.nbytes() for name, storage in storages.items() if name not in known]


def zeros(request: SizeRequest, rows: int) -> Any:
    """A batch of `rows` rows of zeros, as the loader would make it of the dataset's columns, after the transform."""
    schema = pa.schema([field_of(name, text) for name, text in request.columns.items()])
    loader = request.train.get("loader") or {}
    keys, columns = columns_of(schema, request.train.get("batch"), loader.get("pad") or {})
    values: list[Any] = []
    for column in columns:
        if not isinstance(column, Fixed):
            raise Unprobed(f"the rows of column {column.columns[0]!r} differ in length")
        values.append(torch.from_numpy(np.zeros((rows, *column.shape), column.dtype)))
    batch: Any = tuple(values) if keys is None else dict(zip(keys, values, strict=True))
    transform = batch_transform(request.train, Path(request.project))
    return batch if transform is None else transform(batch)


def _placed(batch: Any, fake: FakeTensorMode, config: Mapping[str, Any]) -> Any:
    """The batch as tensors of the step, its floats in the type that a `-true` precision converts them to."""
    dtype = true_type(config)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(fake.from_tensor(tensor))
        return made.to(dtype) if dtype is not None and made.is_floating_point() else made

    return apply_to_collection(batch, torch.Tensor, place)


if __name__ == "__main__":
    child_main(MODULE_MEMORY, main)
