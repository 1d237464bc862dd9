"""How much memory each strategy needs on a device, and which strategy is recommended: pure functions of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.messages.commands import ModuleSizes, StepMemory
from data_contracts.pipeline_spec import TrainSpec
from data_contracts.pipeline_spec.train import is_hsdp, mesh_of
from infra.quantities import size
from tasks.stages.train import needed
from training.order import Plan, make_plan

# What CUDA, its libraries and fragmentation may take of a device: a tenth is left for them.
USABLE = 0.9


@dataclass(frozen=True)
class MemoryNeed:
    """What a strategy needs on each device.

    Attributes:
        bytes: of tensors; without activations if the step could not be measured.
        micro_batch: rows that a device takes at once.
    """

    strategy: str
    nodes: int
    devices: int
    micro_batch: int
    bytes: int

    def fits(self, memory_bytes: int) -> bool:
        """Whether a device with so much memory is enough."""
        return self.bytes <= USABLE * memory_bytes

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "strategy": self.strategy,
            "nodes": self.nodes,
            "devices": self.devices,
            "micro_batch": self.micro_batch,
            "per_device_bytes": self.bytes,
        }


def layout_plan(train: TrainSpec, ranks: int) -> Plan | None:
    """How so many ranks divide a global batch; None if they cannot."""
    return None if train.global_batch_size % ranks else make_plan(train.global_batch_size, train, ranks)


def strategies(train: TrainSpec, nodes: int, devices: int) -> list[str]:
    """The strategies that these ranks can have, the simplest first."""
    if nodes * devices == 1:
        return ["single"]
    two_levels = is_hsdp(nodes, devices, train.shard_ranks if nodes * devices == train.world_size else None)
    return ["ddp", *(["hsdp"] if two_levels else []), "fsdp"]


def needs(train: TrainSpec, sizes: ModuleSizes, nodes: int, devices: int) -> list[MemoryNeed]:
    """What each strategy needs on `nodes` × `devices` ranks, the simplest strategy first; none if they do not fit."""
    plan = layout_plan(train, nodes * devices)
    if plan is None:
        return []
    found = []
    for strategy in strategies(train, nodes, devices):
        shard = mesh_of(strategy, train.shard_ranks or devices, nodes * devices)[1]
        num_bytes = need_bytes(sizes, strategy, shard, plan.micro_batch, accumulates=plan.accumulate > 1)
        found.append(MemoryNeed(strategy, nodes, devices, plan.micro_batch, num_bytes))
    return found


def need_bytes(sizes: ModuleSizes, strategy: str, shard: int, rows: int, *, accumulates: bool) -> int:
    """Bytes of tensors on each device, at the moment when most are alive.

    Args:
        shard: ranks over which a replica is sharded; rows: that the device takes at once.
        accumulates: whether gradients of earlier micro-batches are kept meanwhile.
    """
    if not sizes.steps:
        return needed(sizes, shard, sizes.unit)
    step, update = at(sizes.steps, rows, "step"), at(sizes.steps, rows, "update")
    kept = sizes.parameters + sizes.gradients + sizes.state
    if shard > 1:
        return sizes.buffers - (-kept // shard) + max(step + 2 * sizes.unit, -(-update // shard))
    peak = at(sizes.steps, rows, "peak")
    if accumulates:
        peak = max(peak, kept + sizes.buffers + step)
    # DDP keeps each gradient a second time, in the buckets that it sends.
    return peak + (sizes.gradients if strategy == "ddp" else 0)


def at(steps: Sequence[StepMemory], rows: int, what: str) -> int:
    """A figure for a number of rows: as measured, else on the line through the two nearest measurements."""
    known = {one.rows: int(getattr(one, what)) for one in steps}
    if rows in known:
        return known[rows]
    if len(known) == 1:
        return next(iter(known.values()))
    first, second = sorted(sorted(known, key=lambda one: abs(one - rows))[:2])
    slope = (known[second] - known[first]) / (second - first)
    return max(round(known[first] + slope * (rows - first)), 0)


def recommendation(
    found: Sequence[MemoryNeed], memory_bytes: int, machine: str, *, whole: bool, on_cpu: bool = False
) -> str:
    """One sentence: which strategy to take on a machine, and why none that is more complex.

    Args:
        found: of one layout, the simplest strategy first.
        memory_bytes: of a device; 0 if unknown.
        whole: whether activations are counted.
    """
    simplest = found[0]
    without = "" if whole else ", without activations"
    if on_cpu:
        return f"{simplest.strategy} needs {size(simplest.bytes)} a rank{without}; ranks on a CPU share its memory."
    if not memory_bytes:
        return (
            f"{simplest.strategy} needs {size(simplest.bytes)} a device{without}; the price book does not know the "
            f"memory of {machine}, so it is unknown whether that fits."
        )
    place = f"{simplest.nodes} × {machine}"
    fit = next((one for one in found if one.fits(memory_bytes)), None)
    if fit is None:
        least = min(found, key=lambda one: one.bytes)
        return (
            f"No strategy fits on {place}: {least.strategy} needs the least, {_of(least, memory_bytes)} a device"
            f"{without}."
        )
    if fit is simplest:
        others = " and ".join(one.strategy for one in found[1:])
        rest = f"; {others} {'are' if len(found) > 2 else 'is'} not needed" if others else ""
        return f"{fit.strategy} fits on {place} with {_of(fit, memory_bytes)} a device{without}{rest}."
    return (
        f"{fit.strategy} fits on {place} with {_of(fit, memory_bytes)} a device{without}; {simplest.strategy} would "
        f"need {size(simplest.bytes)}."
    )


def _of(need: MemoryNeed, memory_bytes: int) -> str:
    return f"{size(need.bytes)} of {size(memory_bytes)}"
