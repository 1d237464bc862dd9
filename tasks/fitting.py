"""Whether a training fits the machine that it asks for: found out before a node is launched, with what to change.

Counted is what certainly lies in a device's memory: parameters, gradients and optimizer state, whole or sharded, and
for a sharded module the largest unit gathered with its gradients. Activations are not, so a training that passes may
still run out of memory. A machine whose memory the catalogue does not know takes everything.
"""

from __future__ import annotations

import logging

from data_contracts.errors import UsageError
from data_contracts.spec import TrainSpec
from infra import machines
from infra.launch.child import run_child
from infra.machines import Machine
from tasks.run import Run

MOST_RANKS = 4096
log = logging.getLogger("trainwright")


def refuse_unfit(run: Run) -> None:
    """UsageError if the training cannot fit its machine; the user's class is built in a child, without memory."""
    train, machine = run.spec.train, machines.machine(run.spec.train.machine)
    if not machine.memory_bytes or machines.on_cpu(run.resolved.lightning):
        return
    request = {"train": run.train_settings(), "project": str(run.project())}
    sizes = run_child("training.sizes", request, project=run.project())
    if "unknown" in sizes:
        log.info("whether train fits %s is not known before it starts: %s", machine.name, sizes["unknown"])
        return
    check(train, machine, sizes)


def check(train: TrainSpec, machine: Machine, sizes: dict[str, int]) -> None:
    """UsageError if a device of `machine` has less memory than the training needs on each; `sizes`: training.sizes."""
    for nodes in (train.nodes, train.least_nodes):
        shard = train.mesh(nodes * train.devices)[1]
        need = needed(sizes, shard, sizes["unit"])
        if need > machine.memory_bytes:
            raise _unfit(train, machine, sizes, nodes, shard, need)


def _unfit(train: TrainSpec, machine: Machine, sizes: dict[str, int], nodes: int, shard: int, need: int) -> UsageError:
    parts = {"parameters": sizes["parameters"], "gradients": sizes["gradients"], "optimizer state": sizes["state"]}
    told = ", ".join(f"{_gib(value)} of {name}" for name, value in parts.items())
    spread = f" sharded over {shard}, and a unit of {_gib(sizes['unit'])} gathered" if shard > 1 else ""
    smaller = f" on train.min_nodes = {nodes}" if nodes < train.nodes else ""
    return UsageError(
        f"train.machine: {train.strategy} needs {_gib(need)} of memory on each device{smaller} ({told}{spread}), "
        f"without activations, but a device of {machine.name} has {_gib(machine.memory_bytes)}.",
        remedy="Raise train.min_nodes." if smaller else _remedy(train, machine, sizes, shard, need),
    )


def needed(sizes: dict[str, int], shard: int, unit: int) -> int:
    """Bytes on each device where a replica is sharded over `shard` ranks in units of at most `unit` bytes."""
    kept = sizes["parameters"] + sizes["gradients"] + sizes["state"]
    # A gathered unit stands beside its shard, once as parameters and once as gradients.
    return sizes["buffers"] + (kept if shard == 1 else -(-kept // shard) + 2 * unit)


def _remedy(train: TrainSpec, machine: Machine, sizes: dict[str, int], shard: int, need: int) -> str:
    found = []
    if shard > 1 and needed(sizes, shard, sizes["layer"]) <= machine.memory_bytes < need:
        found.append("shard smaller modules (train.shard_modules)")
    else:
        unit = min(sizes["unit"], sizes["layer"])
        for ranks in (train.world_size, *range(2, MOST_RANKS + 1)):
            even = train.global_batch_size % ranks == 0 and ranks > shard
            if even and needed(sizes, ranks, unit) <= machine.memory_bytes:
                found.append(f"use train.strategy fsdp with train.shard_modules over {ranks} devices")
                break
    roomy = [
        one
        for one in machines.catalogue().values()
        if one.memory_bytes >= need and one.devices >= train.devices and one.name != machine.name
    ]
    if roomy:
        cheapest = min(roomy, key=lambda one: one.usd_per_hour)
        found.append(f"take train.machine {cheapest.name} ({_gib(cheapest.memory_bytes)} a device)")
    sentence = ", or ".join(found) or "make the module smaller"
    return f"{sentence[0].upper()}{sentence[1:]}."


def _gib(value: int) -> str:
    return f"{value / 2**30:.1f} GiB"
