"""Checks, before a node is launched, whether a training fits its machine; an error says what to change.

It counts what certainly lies in a device's memory: parameters, gradients and optimizer state, whole or sharded, and for
a sharded module the largest unit gathered with its gradients. It does not count activations, so a training that passes
may still run out of memory. A machine whose memory is not in the price book always passes.
"""

from __future__ import annotations

import logging
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from data_contracts.messages.commands import MODULE_MEMORY, ModuleSizes, SizeRequest
from data_contracts.pipeline_spec import TrainSpec
from infra import prices
from infra.child import run_child
from infra.prices import Machine
from infra.quantities import size
from infra.records.handoffs import local_dataset
from infra.store import layout
from tasks.run.run import Run

MOST_RANKS = 4096
log = logging.getLogger("trainwright")


def size_facts(run: Run, dataset: Dataset | None) -> dict[str, Any]:
    """The fields of a SizeRequest that say what is measured."""
    facts: dict[str, Any] = {
        "train": run.train_settings(),
        "project": str(run.project()),
        "begin": first_weights(run),
    }
    if dataset is None:
        return facts
    facts["steps"] = dataset.rows("train") // run.spec.train.global_batch_size
    # A data module is asked by some modules' `setup`. Of a remote store the dataset is not copied here for it.
    if "data" in run.resolved.lightning and run.store.is_local:
        facts["dataset_path"] = str(local_dataset(run.store, dataset))
    return facts


def first_weights(run: Run) -> str:
    """The folder of the files of `train.init_from`; "" without, and where a resumed training has outlived them."""
    begin = run.resolved.init_from
    return str(run.store.local(begin)) if begin is not None and run.store.exists(layout.manifest(begin.uri)) else ""


def refuse_unfit(run: Run, dataset: Dataset | None) -> None:
    """UsageError if the training cannot fit its machine, be sharded or begin with its first weights.

    A child builds the user's class without memory.
    """
    train, machine = run.spec.train, prices.machine(run.spec.train.machine)
    limited = bool(machine.memory_bytes) and not prices.on_cpu(run.resolved.lightning)
    if not limited and not train.sharded and run.resolved.init_from is None:
        return
    sizes = run_child(
        MODULE_MEMORY, SizeRequest(**size_facts(run, dataset)), project=run.project(), withhold=run.withholds
    )
    if sizes.unknown:
        log.info("it is unknown before the start whether the training fits %s: %s", machine.name, sizes.unknown)
    elif limited:
        if sizes.stateless:
            log.warning(
                "train.machine: the optimizer's state is not counted, because it cannot be made without a training: %s",
                sizes.stateless,
            )
        check(train, machine, sizes)


def check(train: TrainSpec, machine: Machine, sizes: ModuleSizes) -> None:
    """UsageError if a device of `machine` has less memory than the training needs on each."""
    for nodes in (train.nodes, train.least_nodes):
        shard = train.mesh(nodes * train.devices)[1]
        need = needed(sizes, shard, sizes.unit)
        if need > machine.memory_bytes:
            raise _unfit(train, machine, sizes, nodes, shard, need)


def _unfit(train: TrainSpec, machine: Machine, sizes: ModuleSizes, nodes: int, shard: int, need: int) -> UsageError:
    parts = {"parameters": sizes.parameters, "gradients": sizes.gradients, "optimizer state": sizes.state}
    breakdown = ", ".join(f"{size(value)} of {name}" for name, value in parts.items())
    spread = f" sharded over {shard}, and a unit of {size(sizes.unit)} gathered" if shard > 1 else ""
    smaller = f" on train.min_nodes = {nodes}" if nodes < train.nodes else ""
    return UsageError(
        f"train.machine: {train.strategy} needs {size(need)} of memory on each device{smaller} ({breakdown}{spread}), "
        f"without activations, but a device of {machine.name} has {size(machine.memory_bytes)}.",
        remedy="Raise train.min_nodes." if smaller else _remedy(train, machine, sizes, shard, need),
    )


def needed(sizes: ModuleSizes, shard: int, unit: int) -> int:
    """Bytes needed on each device if a replica is sharded over `shard` ranks in units of at most `unit` bytes."""
    kept = sizes.parameters + sizes.gradients + sizes.state
    # A gathered unit exists beside its shard, once as parameters and once as gradients.
    return sizes.buffers + (kept if shard == 1 else -(-kept // shard) + 2 * unit)


def _remedy(train: TrainSpec, machine: Machine, sizes: ModuleSizes, shard: int, need: int) -> str:
    remedies = []
    if shard > 1 and needed(sizes, shard, sizes.layer) <= machine.memory_bytes < need:
        remedies.append("shard smaller modules (train.shard_modules)")
    else:
        unit = min(sizes.unit, sizes.layer)
        for ranks in (train.world_size, *range(2, MOST_RANKS + 1)):
            even = train.global_batch_size % ranks == 0 and ranks > shard
            if even and needed(sizes, ranks, unit) <= machine.memory_bytes:
                remedies.append(f"use train.strategy fsdp with train.shard_modules over {ranks} devices")
                break
    roomy = [
        one
        for one in prices.catalogue().values()
        if one.memory_bytes >= need and one.devices >= train.devices and one.name != machine.name
    ]
    if roomy:
        cheapest = min(roomy, key=lambda one: one.newest_per_hour)
        remedies.append(f"take train.machine {cheapest.name} ({size(cheapest.memory_bytes)} a device)")
    sentence = ", or ".join(remedies) or "make the module smaller"
    return f"{sentence[0].upper()}{sentence[1:]}."
