"""Whether the replicas of a training still hold the same parameters, bit for bit.

They start equal and apply the same gradients, so a sum over their bits is the same on all. If the sums differ, the
memory or a device of one replica is faulty, and its gradients spoil all the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from data_contracts.errors import CorruptError

EVERY = 100
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(module: torch.nn.Module, others: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
    """A sum over the bits of all parameters, or of this rank's part of sharded ones. Replicas have equal sums.

    One int64 on their device; it wraps around.

    Args:
        others: tensors that are counted in the place of the parameters of these names.
    """
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = [(name, parameter) for name, parameter in module.named_parameters() if name not in ignored]
    values = [(others or {}).get(name, p).detach().to(p.device) for name, p in named]
    parts = [(value.to_local() if isinstance(value, DTensor) else value).reshape(-1) for value in values]
    sums = [part.view(_BITS[part.element_size()]).sum(dtype=torch.int64) for part in parts]
    weighed = [at * each for at, each in enumerate(sums, 1)]
    return torch.stack(weighed).sum() if weighed else torch.zeros((), dtype=torch.int64)


def compare(module: torch.nn.Module, device: torch.device, world_size: int, step: int, *, shards: int = 1) -> None:
    """Raise CorruptError on all ranks, naming the ranks whose parameters differ from the majority's. Collective.

    Args:
        shards: ranks over which a replica is sharded: rank r holds what r + shards holds, too.
    """
    mine = checksum(module).to(device).reshape(1)
    everyone = torch.empty(world_size, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(everyone, mine)
    sums = everyone.tolist()
    odd = sorted(first + shards * at for first in range(shards) for at in odd_ones(sums[first::shards]))
    if odd:
        names = ", ".join(map(str, odd))
        raise CorruptError(
            f"At step {step} the parameters of rank {names} are no longer those of the other ranks."
            if len(odd) < world_size // shards
            else f"At step {step} ranks {names} no longer hold the same parameters.",
            remedy="Resume: every checkpoint was made while they were equal; have that machine's memory tested.",
            details={"step": step, "ranks": odd},
        )


def odd_ones(sums: list[int]) -> list[int]:
    """The ranks whose sum differs from the majority's; all if there is no majority; none if all sums are equal."""
    if len(set(sums)) == 1:
        return []
    [(most, count)] = Counter(sums).most_common(1)
    return [rank for rank, each in enumerate(sums) if 2 * count <= len(sums) or each != most]
