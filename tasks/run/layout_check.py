"""Checks how a spec spreads its stages over devices, before anything is packed or booked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.base import Spread, in_same_place
from data_contracts.pipeline_spec.train import SHARDED, TrainSpec, is_hsdp
from infra import prices

# Precisions that Lightning's ModelParallelStrategy takes, with their short names.
_SHARDABLE = ("32-true", "bf16-mixed", "bf16-true", "16-true")
_LONG = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "64": "64-true"}


def check_layouts(spec: PipelineSpec, lightning: Mapping[str, Any]) -> None:
    """UsageError for devices that the machine lacks, a strategy that the precision rules out, or ranks without batches.

    Args:
        lightning: the Lightning config.
    """
    machine = prices.machine(spec.train.machine)
    prices.check_devices(machine, spec.train.devices, lightning)
    for name, section in (("verify", spec.verify), ("evaluate", spec.evaluate)):
        if in_same_place(section, spec.train):
            prices.check_devices(machine, section.devices or 1, lightning, name)
    precision = str((lightning.get("trainer") or {}).get("precision") or "32-true")
    sharded = [one for one in ("train", "verify", "evaluate") if getattr(spec, one).strategy in SHARDED]
    if sharded and _LONG.get(precision, precision) not in _SHARDABLE:
        field, strategy = f"{sharded[0]}.strategy", getattr(spec, sharded[0]).strategy
        raise UsageError(
            f"{field}: {strategy} cannot compute with precision {precision} of the Lightning config.",
            remedy=f"Set trainer.precision to bf16-mixed or 32-true there, or {field} to ddp.",
        )
    if lightning.get("data") or spec.data == "external":
        _refuse_own_batches(spec)
    else:
        _check_hsdp("evaluate", spec.evaluate, spec.train)
    _check_hsdp("verify", spec.verify, spec.train)


def _check_hsdp(name: str, section: Spread, train: TrainSpec) -> None:
    """UsageError for a section with `hsdp` on too few ranks: its own, else as many as trained."""
    if section.strategy != "hsdp":
        return
    # A pool's gang may not fit this machine.
    as_trained = section.launcher == "work-pool" or train.launcher == "local"
    if section.has_counts:
        enough = is_hsdp(section.nodes or 1, section.devices or 1)
    else:
        enough = as_trained and is_hsdp(train.nodes, train.devices, train.shard_ranks)
    if not enough:
        raise UsageError(
            f"{name}.strategy: hsdp needs at least two nodes of two devices.",
            remedy=f"Use fsdp, or more nodes and devices ({name}.nodes, {name}.devices).",
        )


def _refuse_own_batches(spec: PipelineSpec) -> None:
    """UsageError if several ranks are to score the batches of the user's own data module."""
    if (spec.evaluate.nodes or 1) * (spec.evaluate.devices or 1) > 1:
        raise UsageError(
            "evaluate.devices: your own data module makes its own batches, which one process scores.",
            remedy="Leave evaluate.nodes and evaluate.devices out, or use the sealed shards.",
        )
