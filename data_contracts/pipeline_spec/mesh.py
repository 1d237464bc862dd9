"""How ranks form a mesh: replicas of the parameters, and ranks over which each replica is sharded."""

from __future__ import annotations

from data_contracts.pipeline_spec.base import FieldError

SHARDED = ("fsdp", "hsdp")


def mesh_of(strategy: str, shard_ranks: int, world_size: int) -> tuple[int, int]:
    """Replicas, and ranks of each. On a smaller gang a replica takes more ranks rather than fewer, so that it still
    fits.

    Args:
        shard_ranks: for `hsdp`: ranks that a replica takes if the ranks divide evenly.
    """
    if strategy not in SHARDED:
        return world_size, 1
    least = world_size if strategy == "fsdp" else min(shard_ranks, world_size)
    shard = next(ranks for ranks in range(least, world_size + 1) if world_size % ranks == 0)
    return world_size // shard, shard


def is_hsdp(nodes: int, devices: int, shard_ranks: int | None = None) -> bool:
    """Whether these ranks form several replicas of the parameters, each sharded over several ranks."""
    return min(mesh_of("hsdp", shard_ranks or devices, nodes * devices)) > 1


def check_mesh(strategy: str, shard_ranks: int | None, nodes: int, devices: int) -> None:
    """FieldError if the ranks do not form a mesh of the strategy."""
    world_size = nodes * devices
    ranks = f"train.nodes x train.devices = {world_size}"
    if strategy != "hsdp":
        if shard_ranks is not None:
            raise FieldError("shard_ranks", f"needs strategy hsdp, but it is {strategy}; leave it out")
        return
    shard, how = (shard_ranks, "train.shard_ranks") if shard_ranks else (devices, "train.devices")
    if world_size % shard:
        raise FieldError("shard_ranks", f"{shard} does not divide {ranks}; it is the number of ranks in a replica")
    if shard == world_size:
        sentence = f"hsdp needs two replicas, but {how} {shard} leaves one on {ranks}; use fsdp"
        raise FieldError("strategy", f"{sentence}, or set a smaller train.shard_ranks")
    if shard == 1:
        raise FieldError("strategy", f"hsdp shards a replica, but {how} is 1; use ddp, or set train.shard_ranks")
