"""FLOPs and bytes of operations that one can count by hand."""

from __future__ import annotations

import torch

from training.profile import OperationCounter, peaks


def test_a_product_is_counted_and_a_view_is_free() -> None:
    left, right = torch.ones(4, 8), torch.ones(8, 16)
    with OperationCounter() as counter:
        (left @ right).reshape(64)
    assert counter.flops == 2 * 4 * 8 * 16
    assert counter.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)


def test_an_operation_in_place_reads_and_writes() -> None:
    tensor = torch.ones(100)
    with OperationCounter() as counter:
        tensor.view(10, 10)
        tensor.add_(1)
    assert counter.bytes == 2 * 400


def test_backward_is_counted_too() -> None:
    weight = torch.ones(8, 2, requires_grad=True)
    with OperationCounter() as counter:
        (torch.ones(4, 8) @ weight).sum().backward()
    assert counter.flops == 2 * (2 * 4 * 8 * 2)  # the product, and the gradient of the weight


def test_the_devices_best_is_measured() -> None:
    flops, moved = peaks(torch.device("cpu"), torch.float32)
    assert flops > 1e8
    assert moved > 1e7
