"""What ranks exchange beside tensors: JSON as bytes, never a pickle, so that no rank runs what another sent.

Collectives: every rank of the group calls the same function.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values that the ranks gave, by rank; JSON values, infinities and NaN included.

    Args:
        group: the ranks; default: the group that training uses.
    """
    mine = _bytes(value, group)
    sizes = torch.empty(dist.get_world_size(group), dtype=torch.int64, device=mine.device)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(mine)], device=mine.device), group=group)
    longest = int(sizes.max())
    padded = torch.zeros(longest, dtype=torch.uint8, device=mine.device)
    padded[: len(mine)] = mine
    everyone = torch.empty(len(sizes) * longest, dtype=torch.uint8, device=mine.device)
    dist.all_gather_into_tensor(everyone, padded, group=group)
    parts = everyone.cpu().view(len(sizes), longest)
    return [_value(part[:size]) for part, size in zip(parts, sizes.tolist(), strict=True)]


def share(value: Any, group: dist.ProcessGroup | None = None) -> Any:
    """The value that the group's first rank gave, on every rank; the others' values are ignored."""
    first = dist.get_rank(group) == 0
    mine = _bytes(value if first else None, group)
    size = torch.tensor([len(mine)], device=mine.device)
    dist.broadcast(size, group=group, group_src=0)
    data = mine if first else torch.empty(int(size), dtype=torch.uint8, device=mine.device)
    dist.broadcast(data, group=group, group_src=0)
    return _value(data.cpu())


def _bytes(value: Any, group: dist.ProcessGroup | None) -> torch.Tensor:
    data = torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)
    return data.cuda() if dist.get_backend(group) == "nccl" else data


def _value(data: torch.Tensor) -> Any:
    return json.loads(data.numpy().tobytes())
