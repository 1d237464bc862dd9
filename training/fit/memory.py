"""The child process that measures how much memory a module needs, and one step of it, before a node is launched.

Run as `python -m training.fit.memory REQUEST ANSWER`; it trains nothing. The module is built on torch's meta device,
where tensors have a shape and no memory. Its optimizers take one step there, which creates their state, whatever the
optimizer is. A training step is measured without taking it: the module is built with torch's fake tensors and takes two
steps on a batch of zeros, in the order in which Lightning takes them; shapes and types are followed, values are not.
What is alive is counted in bytes of tensors. What CUDA, its libraries and the allocator add is not counted.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from lightning.fabric.utilities.apply_func import apply_to_collection
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
# A module with fewer bytes of parameters, gradients and optimizer state may take real steps.
SMALL_BYTES = 2**29
REAL_ROWS = (8, 16)


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


class _Batches:
    """A loader of which only the length is asked."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(())


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
    with unset_fake_temporarily():  # Lightning looks at the loader's length as a tensor
        attach_loader(module.trainer, module, _Batches(steps or STEPS))


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


class _KeepsMore(Exception):
    """The real step keeps tensors that a step with fake tensors does not show."""


def probe(request: SizeRequest, kept_bytes: int) -> tuple[list[StepMemory], str]:
    """The memory of a step with each number of rows that a request names; or none, and why not.

    A small module that looks at values, or that keeps more on a CPU than fake tensors show, takes real steps with few
    rows.

    Args:
        kept_bytes: parameters, gradients and optimizer state.
    """
    try:
        try:
            return [_step(request, rows, anyway=kept_bytes > SMALL_BYTES) for rows in request.rows], ""
        except (DataDependentOutputException, DynamicOutputShapeException, _KeepsMore):
            if kept_bytes > SMALL_BYTES:
                raise
            return [_step(request, rows, real=True) for rows in REAL_ROWS], ""
    except Unprobed as reason:
        return [], text_of(reason)
    except TrainwrightError as error:
        return [], error.message.rstrip(".")
    except Exception as error:
        # The module's code may do anything; here it has no values, no running Trainer and no data.
        return [], f"{type(error).__name__} in a step on zeros"


def _step(request: SizeRequest, rows: int, *, real: bool = False, anyway: bool = True) -> StepMemory:
    """A step's memory; _KeepsMore if fake tensors do not show all of it, unless it is to be measured `anyway`."""
    train, project = request.train, Path(request.project)
    config = train["lightning"].get("trainer") or {}
    batch, live = zeros(request, rows), _Live()
    fake = None if real else FakeTensorMode(allow_non_fake_inputs=True)
    with fake or contextlib.nullcontext(), default_type(config), live:
        module = build_module(train, project, optimizer=True)
        with_trainer(module, config, request.steps)
        make_ready(module, module.trainer, "fit", project, prepared=True)
        module.train()
        # A CPU's own kernels of an LSTM keep a work space for the backward pass and copy the weights.
        if not (real or anyway or request.accelerated) and any(isinstance(one, nn.LSTM) for one in module.modules()):
            raise _KeepsMore
        if not module.automatic_optimization:
            raise Unprobed("the module optimises by hand (automatic_optimization is False)")
        chosen = list(optimizers_of(module.configure_optimizers()))
        if len(chosen) != 1:
            raise Unprobed(f"the module has {len(chosen)} optimizers")
        _as_on_gpu(chosen[0], request.accelerated)
        batch = _placed(batch, fake, config)
        _quiet(module)
        for step in range(2):  # the first makes the optimizer's state
            _take(module, chosen[0], batch, step, str(config.get("precision") or ""), live)
    return StepMemory(rows=rows, peak=live.peak, step=live.step_peak, update=live.update_peak)


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


def _as_on_gpu(optimizer: torch.optim.Optimizer, accelerated: bool) -> None:
    """On accelerators, torch's optimizers update all parameters at once, which briefly takes more memory."""
    for group in optimizer.param_groups if accelerated else ():
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True


def _placed(batch: Any, fake: FakeTensorMode | None, config: Mapping[str, Any]) -> Any:
    """The batch as tensors of the step, its floats in the type that a `-true` precision converts them to."""
    dtype = true_type(config)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(tensor if fake is None else fake.from_tensor(tensor))
        return made.to(dtype) if dtype is not None and made.is_floating_point() else made

    return apply_to_collection(batch, torch.Tensor, place)


def _quiet(module: LightningModule) -> None:
    """Logged values are dropped: without a running Trainer there is nothing to log to."""
    for name in ("log", "log_dict"):
        setattr(module, name, lambda *_, **__: None)


def _take(
    module: LightningModule, optimizer: torch.optim.Optimizer, batch: Any, number: int, precision: str, live: _Live
) -> None:
    """One step as Lightning takes it: gradients are deleted after the forward pass, not before it."""
    live.begin(module, optimizer)
    mixed = _MIXED.get(precision)
    with torch.autocast("cpu", dtype=mixed) if mixed is not None else contextlib.nullcontext():
        given = module.training_step(batch, number)
    loss = given["loss"] if isinstance(given, dict) else given
    if not isinstance(loss, torch.Tensor):
        raise Unprobed("training_step returns no loss")
    optimizer.zero_grad()
    loss.backward()
    del given, loss
    live.update()
    optimizer.step()
    live.end()


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of living tensors that operations have made since it began.

    Attributes:
        alive: bytes now; peak: most so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor):
                self._see(one)
        self._note()
        return made

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._sizes:
            return
        size = storage.nbytes()
        self._sizes[id(storage)] = size
        self.alive += size
        weakref.finalize(storage, self._gone, id(storage))

    def _gone(self, name: int) -> None:
        self.alive -= self._sizes.pop(name)

    def _note(self) -> None:
        self.peak = max(self.peak, self.alive)


class _Live(LiveBytes):
    """Separates the memory that a step needs only for a while from the memory that stays.

    Attributes:
        peak: most bytes alive during the last step.
        step_peak: of these, most that are neither parameters, gradients, state nor buffers, before the update.
        update_peak: the same during the optimizer's update.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step_peak = self.update_peak = self._kept = 0
        self._owned: set[int] = set()
        self._updating = False

    def begin(self, module: LightningModule, optimizer: torch.optim.Optimizer) -> None:
        """A step begins: what it reports from now on is of this step; gradients are told apart as they arrive."""
        self.peak = self.step_peak = self.update_peak = 0
        self._updating = False
        self._own([*module.parameters(), *module.buffers()])
        for state in optimizer.state.values():
            self._own([one for one in state.values() if isinstance(one, torch.Tensor)])
        for parameter in module.parameters():
            if parameter.requires_grad and not hasattr(parameter, "_counted"):
                parameter._counted = True  # type: ignore[attr-defined]
                parameter.register_post_accumulate_grad_hook(lambda one: self._own([one.grad]))
        self._note()

    def update(self) -> None:
        """The optimizer's update begins."""
        self._updating = True
        self._note()

    def end(self) -> None:
        """The step is over."""
        self._updating = False

    def _own(self, tensors: list[Any]) -> None:
        for one in tensors:
            storage = one.untyped_storage()
            if id(storage) in self._sizes and id(storage) not in self._owned:
                self._owned.add(id(storage))
                self._kept += self._sizes[id(storage)]

    def _gone(self, name: int) -> None:
        if name in self._owned:
            self._owned.discard(name)
            self._kept -= self._sizes[name]
        super()._gone(name)

    def _note(self) -> None:
        super()._note()
        if self._updating:
            self.update_peak = max(self.update_peak, self.alive - self._kept)
        else:
            self.step_peak = max(self.step_peak, self.alive - self._kept)


if __name__ == "__main__":
    child_main(MODULE_MEMORY, main)
