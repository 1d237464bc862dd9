"""Batch norm over the rows of all ranks, on any device, for `sync_batchnorm: true` in a Lightning config.

On a GPU torch's own implementation runs, because its kernels are faster; it refuses the CPU, and DDP refuses it there.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.layer_sync import TorchSyncBatchNorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def layer_sync(device: torch.device) -> TorchSyncBatchNorm:
    """The layer that synchronises a module's batch norms on a device."""
    return _OnCpu() if device.type == "cpu" else TorchSyncBatchNorm()


class _OnCpu(TorchSyncBatchNorm):
    """Replaces the forward of batch norms and leaves the rest as it is."""

    def apply(self, model: nn.Module) -> nn.Module:
        for part in _norms(model):
            part.forward = MethodType(_forward, part)
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        for part in _norms(model):
            part.__dict__.pop("forward", None)
        return model


def _norms(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, _BatchNorm)]


def _forward(norm: Any, given: Tensor) -> Tensor:
    """Normalise [rows, channels, ...] by mean and variance over all ranks' rows, or by the running ones."""
    if not norm.training:
        return type(norm).forward(norm, given)
    norm._check_input_dim(given)
    channels = given.shape[1]
    shape = [1, channels] + [1] * (given.dim() - 2)
    over = [dim for dim in range(given.dim()) if dim != 1]
    # Sums of 16-bit values would round.
    x = given.to(torch.promote_types(given.dtype, torch.float32))
    total, rows = _sum_over_ranks(torch.cat([x.sum(over), x.new_tensor([x.numel() / channels])])).split([channels, 1])
    mean = total / rows
    centred = x - mean.view(shape)
    variance = _sum_over_ranks(centred.square().sum(over)) / rows
    _track(norm, mean.detach(), (variance * rows / (rows - 1)).detach())
    y = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.weight is not None:
        y = y * norm.weight.view(shape)
    if norm.bias is not None:
        y = y + norm.bias.view(shape)
    return y.to(given.dtype)


def _track(norm: Any, mean: Tensor, unbiased_variance: Tensor) -> None:
    """Update the running mean and variance as torch does."""
    if not norm.track_running_stats:
        return
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_(unbiased_variance.to(norm.running_var.dtype), share)


def _sum_over_ranks(value: Tensor) -> Tensor:
    summed: Tensor = _Sum.apply(value)
    return summed


class _Sum(torch.autograd.Function):
    """The sum of all ranks' values, on each rank; so a value's gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone()
        dist.all_reduce(summed)
        return summed
