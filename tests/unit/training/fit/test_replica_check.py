"""A sum over the bits of all parameters: any one that differs changes it, and who differs is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from training.fit.guards import checksum, odd_ones


def module(kind: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)).to(kind)
    made[2].weight = nn.Parameter(made[2].weight.detach().t().contiguous().t())  # not contiguous
    return made


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_one_bit_anywhere_changes_it(kind: torch.dtype) -> None:
    expected = checksum(module(kind)).item()
    assert checksum(module(kind)).item() == expected
    for at in range(len(list(module(kind).parameters()))):
        other = module(kind)
        tensor = list(other.parameters())[at].data
        flat = tensor.reshape(-1).clone()
        flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])[0] ^= 1
        tensor.copy_(flat.reshape(tensor.shape))
        assert checksum(other).item() != expected


def test_what_is_not_replicated_does_not_count() -> None:
    one, other = module(), module()
    other[0].bias.data += 1
    assert checksum(one).item() != checksum(other).item()
    for made in (one, other):
        made._ddp_params_and_buffers_to_ignore = ["0.bias"]
    assert checksum(one).item() == checksum(other).item()
    other[1].running_mean += 1  # a buffer
    assert checksum(one).item() == checksum(other).item()


ODD = [([5, 5], []), ([5, 6], [0, 1]), ([5, 6, 5], [1]), ([5, 6, 6, 5], [0, 1, 2, 3]), ([7, 6, 6, 6, 5], [0, 4])]


@pytest.mark.parametrize(("sums", "odd"), ODD)
def test_the_odd_one_is_named_if_most_agree(sums: list[int], odd: list[int]) -> None:
    assert odd_ones(sums) == odd
