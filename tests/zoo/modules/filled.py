"""A function of a spec that changes batches, with random numbers."""

import torch


def noisy(batch):
    x, label = batch
    return x + 0.01 * torch.randn(x.shape), label
