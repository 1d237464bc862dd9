"""Which modules a sharded strategy shards separately: `train.shard_modules`, by class or by size."""

from __future__ import annotations

from torch import nn

from data_contracts.errors import UsageError


def units(module: nn.Module, wanted: list[str] | int | None) -> list[nn.Module]:
    """The modules to shard separately, children before parents; UsageError for a class that is not in the module."""
    if wanted is None:
        return []
    inner = [child for child in module.modules() if child is not module]
    # Containers have no forward of their own in which their parameters could be gathered.
    shardable = [child for child in inner if not isinstance(child, nn.ModuleList | nn.ModuleDict)]
    if isinstance(wanted, int):
        return _large_enough(module, wanted)
    classes = sorted({type(child).__name__ for child in shardable})
    unknown = sorted(set(wanted) - set(classes))
    if unknown:
        raise UsageError(
            f"train.shard_modules: the module has no {unknown[0]}.", remedy=f"It has {', '.join(classes) or 'none'}."
        )
    return [child for child in reversed(shardable) if type(child).__name__ in wanted]


def _large_enough(module: nn.Module, least: int) -> list[nn.Module]:
    """Modules with at least `least` parameters outside their chosen descendants, children first."""
    chosen: list[nn.Module] = []

    def visit(part: nn.Module) -> int:
        left = sum(parameter.numel() for parameter in part.parameters(recurse=False))
        left += sum(visit(child) for child in part.children())
        if left < least or part is module or isinstance(part, nn.ModuleList | nn.ModuleDict):
            return left
        chosen.append(part)
        return 0

    visit(module)
    return chosen
