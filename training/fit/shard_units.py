"""Which modules a sharded strategy shards separately: `train.shard_modules`, by class or by size.

A module that shares a parameter with a module outside it is left to the unit around both, because a parameter can be
sharded in one unit only. Within a unit, all parameters that learn must have one type; a module of another type becomes
a unit of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from data_contracts.errors import UsageError

# Containers have no forward of their own in which their parameters could be gathered.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def units(module: nn.Module, wanted: list[str] | int | None) -> list[nn.Module]:
    """The modules to shard separately, children before parents, without the root.

    Raises:
        UsageError: a class is not in the module, or its parameters cannot be sharded.
    """
    places = _Places(module)
    chosen = [unit for unit in dict.fromkeys(_chosen(module, wanted)) if places.is_separate(unit)]
    found: list[nn.Module] = []
    taken: set[nn.Parameter] = set()
    for unit in [*chosen, module]:
        own = [parameter for parameter in unit.parameters() if parameter not in taken and parameter.dim()]
        taken.update(own)
        found += _of_other_types(unit, own, places)
        found.append(unit)
    return found[:-1]


def unsharded(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are one number: nothing of them could be sharded, so every rank holds them."""
    return [parameter for parameter in module.parameters() if not parameter.dim()]


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


def _chosen(module: nn.Module, wanted: list[str] | int | None) -> list[nn.Module]:
    if wanted is None:
        return []
    if isinstance(wanted, int):
        return _large_enough(module, wanted)
    shardable = [part for part in module.modules() if part is not module and not isinstance(part, _CONTAINERS)]
    classes = sorted({type(part).__name__ for part in shardable})
    unknown = sorted(set(wanted) - set(classes))
    if unknown:
        raise UsageError(
            f"train.shard_modules: the module has no {unknown[0]}.", remedy=f"It has {', '.join(classes) or 'none'}."
        )
    return [part for part in reversed(shardable) if type(part).__name__ in wanted]


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
