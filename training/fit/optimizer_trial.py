"""Tries an optimizer on sharded parameters before step 1: it must change them as it changes whole ones.

Many optimizers change each element by itself, and torch computes most other updates of a sharded tensor as those of the
whole. But an optimizer that reads a number from a sharded tensor (`norm().item()`), or works on a rank's part of a
matrix, makes other steps without an error. Here, a copy of it takes steps with parameters of the same shapes and
placements, sharded and whole, and the results are compared.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from data_contracts.errors import UsageError
from data_contracts.quoting import describe

log = logging.getLogger(__name__)
# They change each element by itself, and their state has the shape of the parameter or is one number.
ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD")
)
_STEPS = 3
_CLOSE = 1e-10
# Larger matrices are tried as matrices of this size: optimizers seldom treat larger ones in another way.
_MOST = 256


def refuse_wrong_on_shards(optimizers: Sequence[torch.optim.Optimizer], module: nn.Module, strategy: str) -> None:
    """UsageError if an optimizer does not change sharded parameters as it changes whole ones. Collective."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    for optimizer in optimizers:
        if type(optimizer) in ELEMENTWISE:
            continue
        examples = _examples(optimizer)
        try:
            whole = _take_steps(optimizer, examples, sharded=False)
        except Exception as error:
            log.warning("%s could not be tried on sharded parameters: %s", type(optimizer).__name__, describe(error))
            continue
        wrong, reason = next(iter(examples), None), ""
        try:
            sharded = _take_steps(optimizer, examples, sharded=True)
            wrong = next((each for each in examples if not _is_close(sharded[each], whole[each])), None)
        except Exception as error:
            reason = f": {describe(error)}"
        if wrong is not None:
            raise UsageError(
                f"train.strategy: {strategy} shards {names.get(wrong, 'a parameter')} {list(wrong.shape)}, and "
                f"{type(optimizer).__name__} does not change a sharded parameter as it changes a whole one{reason}.",
                remedy="Set train.strategy: ddp without shard_modules and shard_ranks, or take an optimizer that "
                "changes each element by itself, such as AdamW.",
            )


def _examples(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The largest parameter of each number of dimensions in each group: an optimizer may treat them differently."""
    largest: dict[tuple[int, int], nn.Parameter] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            kind = (number, parameter.dim())
            if kind not in largest or parameter.numel() > largest[kind].numel():
                largest[kind] = parameter
    return list(largest.values())


def _take_steps(
    optimizer: torch.optim.Optimizer, examples: Sequence[nn.Parameter], *, sharded: bool
) -> Mapping[nn.Parameter, torch.Tensor]:
    """What a copy of an optimizer makes of parameters like these in some steps, whole."""
    draw = torch.Generator().manual_seed(0)

    def tensor(like: torch.Tensor) -> torch.Tensor:
        shape = [min(size, _MOST) if at < 2 else size for at, size in enumerate(like.shape)]
        value = torch.randn(shape, generator=draw, dtype=torch.float64).to(like.device)
        if not sharded or not isinstance(like, DTensor):
            return value
        return distribute_tensor(value, like.device_mesh, like.placements)

    parameters = {like: nn.Parameter(tensor(like)) for like in examples}
    trial = _copy(optimizer, parameters)
    loss: Any = torch.zeros(())
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        for _ in range(_STEPS):
            for like, parameter in parameters.items():
                parameter.grad = tensor(like)
            # Not `trial.step`: a schedule replaces the original's.
            type(optimizer).step(trial, lambda: loss)
    return {like: _whole(parameter.detach()) for like, parameter in parameters.items()}


def _copy(optimizer: torch.optim.Optimizer, parameters: Mapping[nn.Parameter, nn.Parameter]) -> Any:
    """A copy of an optimizer without state, for other parameters; the original shares nothing with it."""
    trial = object.__new__(type(optimizer))
    of_dims = {each.dim(): each for each in parameters.values()}
    everything = (each for group in optimizer.param_groups for each in group["params"])
    memo: dict[int, Any] = {id(each): parameters.get(each, of_dims[each.dim()]) for each in everything}
    memo[id(optimizer)] = trial
    settings = {name: value for name, value in vars(optimizer).items() if name not in ("step", "param_groups", "state")}
    trial.__dict__.update(copy.deepcopy(settings, memo))
    trial.__dict__["state"] = defaultdict(dict)
    trial.__dict__["param_groups"] = [
        {
            **copy.deepcopy({name: value for name, value in group.items() if name != "params"}, memo),
            "params": [parameters[each] for each in group["params"] if each in parameters],
        }
        for group in optimizer.param_groups
    ]
    return trial


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _is_close(computed: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(torch.allclose(computed, expected, rtol=0.0, atol=_CLOSE * max(1.0, float(expected.abs().max()))))
