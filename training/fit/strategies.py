"""How ranks share the work: a replica each (DDP), parameters sharded (FSDP2, HSDP), or one rank.

All read checkpoints in our own format through `load_checkpoint`. Saving goes through `checkpoint/`, never through
Lightning. FSDP shards an unmodified module in place, so it needs no `configure_model` of the user's.

Which modules are sharded separately is `train.shard_modules`, by class or by size. A module that shares a parameter
with a module outside it is left to the unit around both, because a parameter can be sharded in one unit only. Within a
unit, all parameters that learn must have one type; a module of another type becomes a unit of its own.

torch computes most updates of a sharded tensor as those of the whole. An optimizer that reads a number from a sharded
tensor (`norm().item()`), or works on a rank's part of a matrix, makes other steps without an error. So those of torch
that do are refused, and one that is not of torch is named in a warning.

For `sync_batchnorm: true`, batch norm is over the rows of all ranks, by torch's own implementation; it needs GPUs.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm
from lightning.pytorch.strategies import (
    DDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
    SingleDeviceStrategy,
    Strategy,
)
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from data_contracts.errors import CorruptError, UsageError
from data_contracts.pipeline_spec import TrainSpec
from infra.records.handoffs import plain_name
from training.checkpoint.files import WEIGHTS, Get, TensorReader, as_named, read_state
from training.lightning_adapter import synchronises_batch_norm
from training.user.ready import after_configuring

_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
# Containers have no forward of their own in which their parameters could be gathered.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
log = logging.getLogger(__name__)
# They change each element by itself, and their state has the shape of the parameter or is one number.
ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD")
)
# They read a number from a whole tensor, or work on a whole matrix.
_WRONG_ON_SHARDS = (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon)


def make_strategy(train: TrainSpec, world_size: int, accelerator: str = "auto") -> Strategy:
    """The strategy that the spec names, with the collectives' timeout set.

    Args:
        accelerator: what the Lightning config asks for; it decides a single rank's device.
    """
    timeout = timedelta(seconds=train.collective_timeout_s)
    if train.strategy == "ddp":
        return SealedDDP(timeout=timeout)
    if train.sharded:
        return ShardedStrategy(train.shard_modules, train.mesh(world_size), timeout)
    return SealedSingle(device="cuda:0" if on_gpu(accelerator) else "cpu")


def on_gpu(accelerator: str) -> bool:
    """Whether a rank with this accelerator of a Lightning config works on a CUDA device."""
    return accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()


class _ReadsSealed(Strategy):
    """Reads a checkpoint's folder into the dictionary that Lightning restores from."""

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The checkpoint with its tensors as `placed_reader` reads them."""
        with TensorReader(Path(checkpoint_path)) as reader:
            return read_state(reader.folder, self.placed_reader(reader))

    def placed_reader(self, reader: TensorReader) -> Get:
        """Reads a checkpoint's tensors by name: whole, on the CPU."""
        return reader.read

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Give the module its weights: their names may be a compiled module's, and none is rounded."""
        assert self.lightning_module is not None
        # Lightning converts the module only afterwards: `64-true` would lose half of each weight's bits.
        self.precision_plugin.convert_module(self.lightning_module)
        super().load_model_state_dict(_renamed(checkpoint, self.lightning_module), strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Give the optimizers their state, or this rank's part, after checking that it belongs to them."""
        _check_optimizers(self.optimizers, checkpoint)
        Strategy.load_optimizer_state_dict(self, checkpoint)


class _ExactMeans(ParallelStrategy):
    """Exact means over ranks of whole numbers, such as the row counts that weigh a logged value."""

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce as Lightning does, without rounding the mean down: 21 rows on two ranks would weigh as 20."""
        if isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() and reduce_op in ("mean", "avg", None):
            tensor = tensor.to(torch.get_default_dtype())
        return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]


class SealedDDP(_ExactMeans, _ReadsSealed, DDPStrategy):
    """A replica per rank."""

    def setup(self, trainer: Trainer) -> None:
        """Set up as Lightning does, unless the config asks for what the device cannot do."""
        _refuse_synchronised_on_cpu(self)
        super().setup(trainer)

    def configure_ddp(self) -> None:
        """Configure DDP as Lightning does, with gradients in their final buckets from the first step."""
        super().configure_ddp()
        assert isinstance(self.model, nn.parallel.DistributedDataParallel)
        _settle_buckets(self.model)
        self._unused = _UnusedParameters(self.model, self._timeout)

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """Begin to note which parameters a backward pass reaches."""
        super().pre_backward(closure_loss)
        self._unused.begin()

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Complete the gradients, where a backward pass did not reach all parameters."""
        super().post_backward(closure_loss)
        self._unused.complete()

    def on_exception(self, exception: BaseException) -> None:
        """Keep an exception as it is: Lightning would advise another strategy, which a spec cannot name."""

    def optimizer_step(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Step as Lightning does; LBFGS looks at the loss that its closure returns, which must be that of all rows."""
        if isinstance(optimizer, torch.optim.LBFGS):
            return super().optimizer_step(optimizer, lambda: self.reduce(closure()), model, **kwargs)
        return super().optimizer_step(optimizer, closure, model, **kwargs)


class SealedSingle(_ReadsSealed, SingleDeviceStrategy):
    """One rank."""


class ShardedStrategy(_ExactMeans, _ReadsSealed, ModelParallelStrategy):
    """FSDP2 on any device: parameters, gradients and optimizer state are sharded over all ranks, or over a replica's
    ranks.

    Args:
        mesh: replicas, and ranks over which each is sharded.
    """

    def __init__(self, shard_modules: list[str] | int | None, mesh: tuple[int, int], timeout: timedelta) -> None:
        super().__init__(data_parallel_size=mesh[0] * mesh[1], tensor_parallel_size=1, timeout=timeout)
        self._shard_modules = shard_modules
        self._mesh = mesh
        self._collective_timeout = timeout
        # Ranks over which a replica is sharded.
        self.shards = mesh[1]
        # Parameters that every rank holds.
        self._whole: list[nn.Parameter] = []

    def connect(self, model: LightningModule) -> None:
        """Attach the module; its `configure_model` hook shards it after the user's own hook."""

        def finish(module: LightningModule) -> None:
            if module.trainer.strategy is not self:  # the module's next Trainer calls the hook again
                return
            # Lightning's own strategy of this kind ignores `sync_batchnorm`.
            _refuse_synchronised_on_cpu(self)
            if synchronises_batch_norm(self):
                TorchSyncBatchNorm().apply(module)
            self._shard(module)

        after_configuring(model, finish)
        super().connect(model)

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Make the optimizers, and refuse those that are wrong on shards."""
        super().setup_optimizers(trainer)
        _check_on_shards(self.optimizers)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step with the buffers of rank 0 on all ranks, as DDP does, so that both train alike."""
        self._share_buffers()
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step with the buffers of rank 0 on all ranks."""
        self._share_buffers()
        return super().validation_step(*args, **kwargs)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        """Average the gradients that FSDP does not reduce."""
        super().post_backward(closure_loss)
        learning = [parameter for parameter in self._whole if parameter.requires_grad]
        if learning:
            _average_gradients(learning)

    def placed_reader(self, reader: TensorReader) -> Get:
        """Reads a checkpoint's tensors by name; of a sharded parameter, this rank's part."""
        return partial(_read_placed, reader, self._templates())

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning restores the optimizers from what `load_checkpoint` returned."""
        return True

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Copy the parts into the sharded parameters."""
        Strategy.load_model_state_dict(self, _renamed(checkpoint, self.lightning_module), strict)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's state as this rank holds it: sharded tensors, nothing gathered or copied."""
        return Strategy.lightning_module_state_dict(self)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """An optimizer's state as this rank holds it."""
        return Strategy.optimizer_state(self, optimizer)

    def _share_buffers(self) -> None:
        assert self.lightning_module is not None
        by_type: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for buffer in self.lightning_module.buffers():
            by_type[buffer.dtype].append(buffer)
        with torch.no_grad():
            for buffers in by_type.values():
                together = torch.cat([buffer.reshape(-1) for buffer in buffers])
                dist.broadcast(together, 0)
                parts = together.split([buffer.numel() for buffer in buffers])
                for buffer, part in zip(buffers, parts, strict=True):
                    buffer.copy_(part.view_as(buffer))

    def _shard(self, module: LightningModule) -> None:
        names = ("replicate", "shard") if self._mesh[0] > 1 else ("shard",)
        mesh = init_device_mesh(self.root_device.type, self._mesh[-len(names) :], mesh_dim_names=names)
        # Groups of a subset of the ranks have torch's own timeout.
        for name in names:
            _set_pg_timeout(self._collective_timeout, mesh.get_group(name))
        # Nothing of a number could be sharded.
        self._whole = [parameter for parameter in module.parameters() if not parameter.dim()]
        for unit in [*units(module, self._shard_modules), module]:
            fully_shard(unit, mesh=mesh, ignored_params=set(self._whole))
        # A step that calls submodules directly bypasses the root's forward, where parameters are gathered.
        for name in _STEPS:
            register_fsdp_forward_method(module, name)

    def _templates(self) -> dict[str, torch.Tensor]:
        """Prefix of a tensor's name in a checkpoint → the parameter whose placement it takes."""
        assert self.lightning_module is not None
        weights = self.lightning_module.state_dict()
        found = {f"{WEIGHTS}/{plain_name(name)}": value for name, value in weights.items()}
        for number, optimizer in enumerate(self.optimizers):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            found |= {f"optimizer_states/{number}/state/{at}": value for at, value in enumerate(parameters)}
        return found


def _renamed(checkpoint: Mapping[str, Any], module: LightningModule | None) -> dict[str, object]:
    return {**checkpoint, WEIGHTS: as_named(checkpoint[WEIGHTS], module)}


def _check_optimizers(optimizers: Sequence[Any], checkpoint: Mapping[str, Any]) -> None:
    """CorruptError if the states are not those of these optimizers; torch checks only the number of parameters."""
    states = checkpoint["optimizer_states"]
    if len(states) != len(optimizers):
        raise CorruptError(f"The checkpoint has the state of {len(states)} optimizers, the module {len(optimizers)}.")
    for optimizer, state in zip(optimizers, states, strict=True):
        if not isinstance(optimizer, ELEMENTWISE):
            continue
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for at, values in state["state"].items():
            for name, value in values.items():
                shape, wanted = getattr(value, "shape", ()), parameters[int(at)].shape
                if shape not in ((), wanted):
                    raise CorruptError(
                        f"The checkpoint's {name} of parameter {at} has the shape {list(shape)}, the parameter "
                        f"{list(wanted)}."
                    )


def _read_placed(reader: TensorReader, templates: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """A tensor on its parameter's device and with its placement: of a sharded parameter, this rank's part alone."""
    entry = reader.entry(name)
    # A parameter has its full name; `optimizer_states/0/state/3/exp_avg` belongs to parameter 3.
    like = templates.get(plain_name(name), templates.get("/".join(name.split("/")[:4])))
    if not isinstance(like, DTensor):
        return reader.read(name)
    mesh = like.device_mesh
    if tuple(like.shape) == entry.shape:
        shape, offset = compute_local_shape_and_global_offset(like.shape, mesh, like.placements)
        part = reader.read_part(name, offset, shape).to(mesh.device_type)
        return DTensor.from_local(part, mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())
    whole = reader.read(name)
    if not entry.sharded:
        return whole
    # State of another shape than its parameter (factored optimizers): placed whole; the optimizer redistributes it.
    return DTensor.from_local(whole.to(mesh.device_type), mesh, [Replicate()] * mesh.ndim, run_check=False)


def _average_gradients(numbers: Sequence[nn.Parameter]) -> None:
    """Give parameters that are one number each the mean of all ranks' gradients, where any rank has a gradient.

    What an earlier micro-batch averaged is equal on all ranks, so that its mean is itself.
    """
    zero = torch.zeros((), dtype=torch.float64, device=numbers[0].device)
    gradients = [zero if each.grad is None else each.grad.double() for each in numbers]
    present = [zero if each.grad is None else zero + 1 for each in numbers]
    total = torch.stack([*gradients, *present])
    dist.all_reduce(total)
    for each, gradient, ranks in zip(numbers, *total.split(len(numbers)), strict=True):
        if each.grad is not None or ranks:
            each.grad = (gradient / dist.get_world_size()).to(each.dtype)


class _UnusedParameters:
    """Completes the gradients of backward passes that do not reach all parameters, as those of one process would be.

    DDP waits for the gradients of all parameters. It could be told to look for unused ones, but then it would lay its
    buckets out otherwise for every module. So, parameters that a rank's pass did not reach get a pass of zeros, and
    where no rank has a gradient there is none. Only a rank with such parameters waits for what the others have.
    """

    def __init__(self, model: nn.parallel.DistributedDataParallel, timeout: timedelta | None) -> None:
        self._model = model
        self._parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
        self._reached: set[nn.Parameter] = set()
        self._shared: dist.Work | None = None
        # gloo on a GPU too: reading from the device would wait for the step.
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._reached.add)

    def begin(self) -> None:
        """Begin a backward pass."""
        self._reached.clear()

    def complete(self) -> None:
        """Complete a backward pass, unless it only accumulates gradients."""
        if not self._model.require_backward_grad_sync:
            return
        if self._shared is not None:
            self._shared.wait()
        have = torch.tensor([parameter.grad is not None for parameter in self._parameters], dtype=torch.uint8)
        self._shared = dist.all_reduce(have, dist.ReduceOp.MAX, group=self._group, async_op=True)
        left_out = [parameter for parameter in self._parameters if parameter not in self._reached]
        if not left_out:
            return
        _backward_of_zeros(left_out)
        assert self._shared is not None
        self._shared.wait()
        for parameter, anywhere in zip(self._parameters, have.tolist(), strict=True):
            if not anywhere:
                parameter.grad = None


def _settle_buckets(model: nn.parallel.DistributedDataParallel) -> None:
    """Make DDP rebuild its buckets before the first step.

    DDP does so once, after the first backward pass, in the order in which gradients arrived. A gradient's place in the
    buckets decides in which order more than two ranks add it up, and so how the sum is rounded. A resumed training
    would start with the first buckets again, and differ from an uninterrupted one. So a backward pass of zeros comes
    first.
    """
    parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    model.reducer.prepare_for_backward([])
    _backward_of_zeros(parameters)
    for each in parameters:
        each.grad = None


def _backward_of_zeros(parameters: Sequence[nn.Parameter]) -> None:
    """Add zeros to the gradients of parameters, also of those that are frozen for now."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for each in frozen:
        each.requires_grad_(True)
    torch.stack([each.reshape(-1)[:0].abs().sum(dtype=torch.float64) for each in parameters]).sum().backward()
    for each in frozen:
        each.requires_grad_(False)


def units(module: nn.Module, shard_modules: list[str] | int | None) -> list[nn.Module]:
    """The modules to shard separately, children before parents, without the root.

    Raises:
        UsageError: a class is not in the module, or its parameters cannot be sharded.
    """
    places = _Places(module)
    chosen = [unit for unit in dict.fromkeys(_chosen(module, shard_modules)) if places.is_separate(unit)]
    modules: list[nn.Module] = []
    taken: set[nn.Parameter] = set()
    for unit in [*chosen, module]:
        own = [parameter for parameter in unit.parameters() if parameter not in taken and parameter.dim()]
        taken.update(own)
        modules += _of_other_types(unit, own, places)
        modules.append(unit)
    return modules[:-1]


class _Places:
    """Where the parts of a module and their parameters are, under all of their names."""

    def __init__(self, module: nn.Module) -> None:
        self._modules: dict[nn.Module, list[str]] = {}
        self._parameters: dict[nn.Parameter, list[str]] = {}
        for name, part in module.named_modules(remove_duplicate=False):
            self._modules.setdefault(part, []).append(f"{name}.")
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._parameters.setdefault(parameter, []).append(name)

    def is_separate(self, part: nn.Module) -> bool:
        """Whether no parameter of a part is also outside it."""
        inside = tuple(self._modules[part])
        return all(name.startswith(inside) for each in part.parameters() for name in self._parameters[each])

    def name(self, parameter: nn.Parameter) -> str:
        """A parameter's first name."""
        return self._parameters[parameter][0]


def _chosen(module: nn.Module, shard_modules: list[str] | int | None) -> list[nn.Module]:
    if shard_modules is None:
        return []
    if isinstance(shard_modules, int):
        return _large_enough(module, shard_modules)
    shardable = [part for part in module.modules() if part is not module and not isinstance(part, _CONTAINERS)]
    classes = sorted({type(part).__name__ for part in shardable})
    unknown = sorted(set(shard_modules) - set(classes))
    if unknown:
        raise UsageError(
            f"train.shard_modules: the module has no {unknown[0]}.", remedy=f"It has {', '.join(classes) or 'none'}."
        )
    return [part for part in reversed(shardable) if type(part).__name__ in shard_modules]


def _large_enough(module: nn.Module, least: int) -> list[nn.Module]:
    """Modules with at least `least` parameters outside their chosen descendants, children first."""
    chosen: list[nn.Module] = []

    def visit(part: nn.Module) -> int:
        left = sum(parameter.numel() for parameter in part.parameters(recurse=False))
        left += sum(visit(child) for child in part.children())
        if left < least or part is module or isinstance(part, _CONTAINERS):
            return left
        chosen.append(part)
        return 0

    visit(module)
    return chosen


def _of_other_types(unit: nn.Module, own: Iterable[nn.Parameter], places: _Places) -> list[nn.Module]:
    """The parts of a unit that must be sharded apart, because their parameters have another type than most."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in own:
        if parameter.requires_grad:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if len(sizes) < 2:
        return []
    most = max(sizes, key=lambda dtype: sizes[dtype])
    others = {each for each in own if each.requires_grad and each.dtype != most}
    parts = []
    for part in unit.modules():
        odd = others & set(part.parameters(recurse=False))
        if not odd:
            continue
        types = {each.dtype for each in part.parameters() if each.requires_grad and each.dim()}
        if part is unit or isinstance(part, _CONTAINERS) or len(types) > 1 or not places.is_separate(part):
            name = min(map(places.name, odd))
            kinds = sorted(str(dtype).removeprefix("torch.") for dtype in sizes)
            raise UsageError(
                f"train.strategy: {name} cannot be sharded: its module has parameters of several types "
                f"({', '.join(kinds)}).",
                remedy="Give the module's parameters one type, or set train.strategy: ddp without shard_modules.",
            )
        parts.append(part)
    return parts[::-1]


def _check_on_shards(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if isinstance(optimizer, _WRONG_ON_SHARDS):
            raise UsageError(
                f"train.strategy: {name} does not change a sharded parameter as it changes a whole one.",
                remedy="Set train.strategy: ddp without shard_modules and shard_ranks, or take an optimizer that "
                "changes each element by itself, such as AdamW.",
            )
        if type(optimizer) not in ELEMENTWISE:
            log.warning(
                "%s is right on sharded parameters if it changes each element by itself, or computes with whole "
                "tensors; it must not read a number from a tensor, or work on a rank's part.",
                name,
            )


def _refuse_synchronised_on_cpu(strategy: ParallelStrategy) -> None:
    if synchronises_batch_norm(strategy) and strategy.root_device.type == "cpu":
        raise UsageError(
            "train.lightning: trainer.sync_batchnorm needs GPUs: torch does not synchronise batch norm on a CPU.",
            remedy="Leave it out, or normalise by something that does not depend on the batch, such as GroupNorm.",
        )
