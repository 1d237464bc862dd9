"""The loss on a held batch: computed when a checkpoint is made, sealed with it, and computed again from its bytes.

It is `training_step` on the first rows of `val` (of `train`, if there is no `val`), at most as many as a step takes,
with the module in evaluation mode and its logging off. It changes nothing that the training continues with. The weights
are those that the checkpoint holds: a callback may save others than the module has, such as their moving average.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import logging
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.distributed.tensor import DTensor

from training.checkpoint.saver import capture_rng, restore_rng, seed_rank
from training.user.ready import Mute

log = logging.getLogger(__name__)

BEFORE_TRANSFER = "on_before_batch_transfer"
MOST_ROWS = 32
# Relative differences that another order of additions explains: in full precision, and with 16 bits anywhere.
TOLERANCE = 1e-3
TOLERANCE_16 = 5e-2
# What a module has in these places, sharding replaces within a step.
_PARTS = {"_parameters", "_modules"}


def held_loss(
    module: L.LightningModule,
    batch: Callable[[], Any],
    trainer: L.Trainer,
    ranks: int | None = None,
    weights: Mapping[str, torch.Tensor] | None = None,
    *,
    before_transfer: bool = True,
) -> float | None:
    """The loss on a batch; None where the module's step cannot return it. Collective where the module is sharded.

    Args:
        batch: makes it; the user's transform may draw random numbers, which are the same each time.
        ranks: how many recorded the loss that this one is compared with; default: it is compared with none.
        before_transfer: whether the module's `on_before_batch_transfer` is called.
        weights: values that parameters and buffers of these names have meanwhile.

    Raises: what the user's code raises; RuntimeError if the step gathers values of more or fewer ranks than recorded.
    """
    if not module.automatic_optimization:
        return None  # its step changes the weights
    replaced: dict[str, Callable[..., object]] = dict.fromkeys(("log", "log_dict"), lambda *_, **__: None)
    if ranks not in (None, trainer.world_size):
        replaced["all_gather"] = _refuse_to_gather
    with (
        _undisturbed(module, trainer, replaced, weights or {}),
        trainer.precision_plugin.forward_context(),
    ):
        seed_rank(0, 0, 0)
        # The strategy calls these hooks only within the Trainer's loops, and verify has none.
        made = trainer.precision_plugin.convert_input(batch())
        if before_transfer:
            made = module.on_before_batch_transfer(made, 0)
        made = module.transfer_batch_to_device(made, trainer.strategy.root_device, 0)
        made = module.on_after_batch_transfer(made, 0)
        given = module.training_step(*_arguments(module, made))
    loss = given.get("loss") if isinstance(given, Mapping) else given
    return float(loss.detach()) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None


def record(
    module: L.LightningModule,
    batch: Callable[[], Any],
    trainer: L.Trainer,
    *,
    sharded: bool,
    rows: int,
    state_dict: Mapping[str, Any] | None = None,
) -> dict[str, object] | None:
    """The record to seal with a checkpoint: the loss and the circumstances it depends on; None without a loss.

    Args:
        state_dict: the module's state as the checkpoint holds it; default: as the module has it.
    """
    try:
        loss = held_loss(module, batch, trainer, weights=saved_weights(module, state_dict or {}))
    except Exception as error:
        log.warning(
            "the loss on the held batch is not recorded, because the module's step raised %s: %s",
            type(error).__name__,
            error,
        )
        return None
    if loss is None or not math.isfinite(loss):
        return None
    # Earlier versions did not call it; only where it matters does the record say that this one does.
    own = {BEFORE_TRANSFER: True} if is_overridden(BEFORE_TRANSFER, module, L.LightningModule) else {}
    return {"loss": loss, "sharded": sharded, "rows": rows, **own, **circumstances(trainer)}


def saved_weights(module: L.LightningModule, state_dict: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint's state that are not the module's own, by the name of the parameter or buffer."""
    saved = {name: (own, state_dict.get(name)) for name, own in _tensors(module)}
    return {
        name: value
        for name, (own, value) in saved.items()
        if isinstance(value, torch.Tensor) and value.shape == own.shape and _address(value) != _address(own)
    }


def circumstances(trainer: L.Trainer) -> dict[str, object]:
    """The circumstances under which the same bytes give the same bits."""
    device = trainer.strategy.root_device
    return {
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "precision": str(trainer.precision),
        "torch": torch.__version__,
    }


def misfit(recorded: Mapping[str, Any], loss: float, now: Mapping[str, Any]) -> str:
    """How a loss differs from the recorded one, or "". It must be bit-equal under equal circumstances, else about
    equal.
    """
    same = not recorded["sharded"] and all(recorded[name] == value for name, value in now.items())
    tolerance = 0.0 if same else TOLERANCE_16 if "16" in str(recorded["precision"]) else TOLERANCE
    if loss == recorded["loss"] or math.isclose(loss, recorded["loss"], rel_tol=tolerance, abs_tol=tolerance):
        return ""
    allowed = f" (allowed is a relative difference of {tolerance:g})" if tolerance else ""
    return f"the loss on the held batch is {loss!r}, but {recorded['loss']!r} was recorded{allowed}"


@contextlib.contextmanager
def evaluating(module: L.LightningModule) -> Iterator[None]:
    """Put the module in evaluation mode; afterwards restore the mode of each part, and the random generators."""
    rng, modes = capture_rng(), [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        restore_rng(rng)


def _arguments(module: L.LightningModule, batch: Any) -> tuple[Any, ...]:
    # Of the class: FSDP replaces the method on the instance.
    parameters = inspect.signature(type(module).training_step).parameters
    return (batch, 0) if len(parameters) > 2 or "batch_idx" in parameters else (batch,)


def _tensors(module: L.LightningModule) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(module.named_parameters(), module.named_buffers())


def _address(tensor: torch.Tensor) -> tuple[torch.device, int]:
    return tensor.device, (tensor.to_local() if isinstance(tensor, DTensor) else tensor).data_ptr()


def _refuse_to_gather(*_: Any, **__: Any) -> None:
    raise RuntimeError("the step gathers values of all ranks, and another number of ranks recorded the loss")


@contextlib.contextmanager
def _undisturbed(
    module: L.LightningModule, trainer: L.Trainer, replaced: Mapping[str, Any], weights: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Let the module evaluate with a logger that keeps nothing; afterwards restore it and the generators.

    Meanwhile it has copies of its attributes, and so have its parts: a step may count, keep its outputs, or replace a
    buffer. Objects of other classes than containers and tensors are shared.

    Args:
        replaced: methods that the module has meanwhile, by name; weights: values of its tensors.
    """
    loggers, trainer.loggers = trainer.loggers, [Mute(trainer.default_root_dir)]
    attributes = [
        (part, {name: value for name, value in vars(part).items() if name not in _PARTS}) for part in module.modules()
    ]
    # A step may move weights, such as those of a teacher that follows. Copied to the host: a device may be full.
    moved = [tensor for tensor in [*module.parameters(), *module.buffers()] if not isinstance(tensor, DTensor)]
    tensors = [(tensor, tensor.data, tensor.detach().to("cpu", copy=True)) for tensor in moved]
    exchanged = [(tensor, weights[name]) for name, tensor in _tensors(module) if name in weights]
    sharded = [(tensor, tensor.detach().clone()) for tensor, _ in exchanged if isinstance(tensor, DTensor)]
    for part, before in attributes:
        vars(part).update({name: _copied(value) for name, value in before.items() if name != "_buffers"})
        vars(part)["_buffers"] = dict(before["_buffers"])
    vars(module).update(replaced)
    try:
        with evaluating(module):
            for tensor, value in exchanged:
                tensor.copy_(value)
            yield
    finally:
        trainer.loggers = loggers
        for part, before in attributes:
            for name in vars(part).keys() - before.keys() - _PARTS:
                del vars(part)[name]
            vars(part).update(before)
        with torch.no_grad():
            for tensor, memory, value in tensors:
                tensor.data = memory
                tensor.copy_(value)
            for tensor, value in sharded:
                tensor.copy_(value)


def _copied(value: Any) -> Any:
    """A copy of a tensor, or of a container and what it contains; another object is returned as it is."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is tuple:
        return tuple(map(_copied, value))
    if type(value) not in (list, deque, set, dict, OrderedDict, defaultdict, Counter):
        return value
    copied = copy.copy(value)
    places = value.items() if isinstance(value, dict) else () if isinstance(value, set) else enumerate(value)
    for place, item in places:
        copied[place] = _copied(item)
    return copied
